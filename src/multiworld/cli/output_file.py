"""Files that a command writes at its end: what stands against that is told before it begins."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

__all__ = ["check_output", "tell_unwritten", "write_output"]


def check_output(parser: argparse.ArgumentParser, option: str, path: Path) -> None:
    """End the command, with one line, if a file cannot be written there."""
    if not path.parent.is_dir():
        parser.error(f"{option}: there is no folder {path.parent}")
    if path.is_dir():
        parser.error(f"{option}: {path} is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"{option}: {path} cannot be written")


def write_output(option: str, path: Path, text: str) -> bool:
    """Write a line to a file; return whether that went well, and say so, with the command and ``option``, if not."""
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        tell_unwritten(option, path, error)
        return False
    return True


def tell_unwritten(option: str, path: Path, error: OSError) -> None:
    print(f"{option}: {path} cannot be written: {error.strerror}", file=sys.stderr)
