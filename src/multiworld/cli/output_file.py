"""Files that a command writes at its end: what stands against that is told before it begins."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["check_output"]


def check_output(parser: argparse.ArgumentParser, option: str, path: Path) -> None:
    """End the command, with one line, if a file cannot be written there."""
    if not path.parent.is_dir():
        parser.error(f"{option}: there is no folder {path.parent}")
    if path.is_dir():
        parser.error(f"{option}: {path} is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"{option}: {path} cannot be written")
