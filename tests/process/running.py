"""Looks for processes that something has left behind."""

from __future__ import annotations

from pathlib import Path


def runs_in(folder: Path) -> bool:
    """Return whether any process has this folder as its working directory."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                return True
        except OSError:  # it has ended
            continue
    return False
