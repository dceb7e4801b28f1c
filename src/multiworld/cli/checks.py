"""What commands that take long look at before they begin: modules, a channel, files to write at their end."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .. import native
from ..native.compiled import are_sources_wanted


def note_uncompiled(command: str) -> None:
    """Say in a line if each message takes longer than it could, unless the user has chosen it."""
    if native.not_compiled and not are_sources_wanted():
        print(
            f"multiworld {command}: the compiled modules are not in use, so each message takes longer; "
            "'multiworld doctor' says how to have them",
            file=sys.stderr,
            flush=True,
        )


def check_backend(backend: str) -> None:
    """Raise ``ValueError`` for a channel that is unknown, moves no CPU tensors or does not work on this machine."""
    import torch

    from ..channel.registry import find_channel

    support = find_channel(backend, torch.device("cpu")).support()
    if not support.works:
        raise ValueError(f"backend {backend!r} does not work here: {support.reason}")


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
