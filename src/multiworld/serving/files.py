"""How a member on another host gets the files of its deployment: in pieces, from the controller's door."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .blueprint import GRAPH_FILE, WORKS
from .hosts.client import ask

__all__ = ["fetch_files", "list_files", "member_folder", "read_piece"]

PIECE_BYTES = 4 << 20
FETCH_S = 60.0


@contextmanager
def member_folder(arguments: Mapping[str, Any]) -> Iterator[Path]:
    """Give the folder of a member's deployment; on another host than the controller's one with what it needs of it.

    ``arguments``: those of the member's program.
    """
    folder = Path(arguments["folder"])
    if folder.is_dir():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="multiworld-member-") as name:
        folder = Path(name)
        fetch_files(folder, arguments["stage"], partial(_ask, arguments))
        yield folder


def _ask(arguments: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    host, port = arguments["controller"]
    return ask((host, port), arguments["token"], request, timeout_s=FETCH_S)


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
    """Write what a member of a stage needs into an empty folder. Blocks; ``ask`` asks the controller."""
    (folder / WORKS).mkdir(mode=0o700)
    wanted = (GRAPH_FILE, f"{WORKS}/{stage}.pickle")
    for name, size_bytes in ask({"ask": "files"})["files"].items():
        if name in wanted:
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                while file.tell() < size_bytes:
                    file.write(base64.b64decode(ask({"ask": "file", "name": name, "offset": file.tell()})["piece"]))
