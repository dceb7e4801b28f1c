"""How a replica on another host gets the files of its deployment: in pieces, from the controller's door."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .blueprint import GRAPH_FILE, WORKS

__all__ = ["fetch_files", "list_files", "read_piece"]

PIECE_BYTES = 4 << 20


def list_files(folder: Path) -> dict[str, int]:
    """Return the size of each file of a blueprint, by its name below the folder."""
    paths = [folder / GRAPH_FILE, *sorted((folder / WORKS).glob("*.pickle"))]
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths}


def read_piece(folder: Path, name: str, offset: int) -> str:
    """Return up to 4 MiB of one of these files in base64. Raises ValueError for another file."""
    if name not in list_files(folder):
        raise ValueError(f"{name!r} is no file of this deployment")
    with (folder / name).open("rb") as file:
        file.seek(offset)
        return base64.b64encode(file.read(PIECE_BYTES)).decode()


def fetch_files(folder: Path, stage: str, ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Write what a replica of a stage needs into an empty folder. Blocks; ``ask`` asks the controller."""
    (folder / WORKS).mkdir(mode=0o700)
    wanted = (GRAPH_FILE, f"{WORKS}/{stage}.pickle")
    for name, size_bytes in ask({"ask": "files"})["files"].items():
        if name in wanted:
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                while file.tell() < size_bytes:
                    file.write(base64.b64decode(ask({"ask": "file", "name": name, "offset": file.tell()})["piece"]))
