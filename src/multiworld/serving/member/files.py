"""How a member on another host gets the files of its deployment: in pieces, from the controller's door."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from ..blueprint import GRAPH_FILE, WORKS, Blueprint
from ..control.client.client import ask
from ..control.client.questions import FilePiece, FilesFound, ListFiles, ReadFile
from ..errors import DeploymentError

PIECE_BYTES = 4 << 20
FETCH_S = 60.0

A = TypeVar("A")


class AskForFiles(Protocol):
    """Asks the controller. Raises DeploymentError."""

    def __call__(self, question: ListFiles | ReadFile, answer: type[A], /) -> A: ...


class MemberFiles:
    """The files of a member's deployment: those in its folder, or fetched ones, on another host than the controller's.

    What is fetched is kept no longer than it takes to read it: a member may be killed at any time, and a work be large.
    """

    def __init__(self, folder: Path, controller: tuple[str, int], token: str) -> None:
        self._folder, self._controller, self._token = folder, controller, token
        self.is_elsewhere = not self._folder.is_dir()
        """Whether they are fetched."""

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Give the folder of the deployment, or an empty one that goes at the end."""
        if not self.is_elsewhere:
            yield self._folder
            return
        with tempfile.TemporaryDirectory(prefix="multiworld-member-") as name:
            yield Path(name)

    def blueprint(self) -> Blueprint:
        """Read the graph. Blocks."""
        with self.place() as folder:
            if self.is_elsewhere:
                fetch_file(folder, GRAPH_FILE, self._ask)
            return Blueprint.read(folder)

    def fetch_work(self, stage: str, folder: Path) -> None:
        """Have a stage's work in that place. Blocks."""
        if self.is_elsewhere:
            fetch_file(folder, f"{WORKS}/{stage}.pickle", self._ask)

    def _ask(self, question: ListFiles | ReadFile, answer: type[A]) -> A:
        return ask(self._controller, self._token, question, answer, timeout_s=FETCH_S)


def list_files(folder: Path) -> dict[str, int]:
    """Return the size of each file of a blueprint, by its name below the folder."""
    paths = [folder / GRAPH_FILE, *sorted((folder / WORKS).glob("*.pickle"))]
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths}


def read_piece(folder: Path, name: str, offset: int) -> bytes:
    """Return up to 4 MiB of one of these files. Raises ValueError for another file."""
    if name not in list_files(folder):
        raise ValueError(f"{name!r} is no file of this deployment")
    with (folder / name).open("rb") as file:
        file.seek(offset)
        return file.read(PIECE_BYTES)


def fetch_file(folder: Path, name: str, ask: AskForFiles) -> None:
    """Write one file of a blueprint into a folder; a work that is only named has none. Blocks; ``ask``: the controller.

    Raises DeploymentError if it cannot be had.
    """
    size_bytes = ask(ListFiles(), FilesFound).files.get(name)
    if size_bytes is None:
        return
    path = folder / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while file.tell() < size_bytes:
            piece = ask(ReadFile(name=name, offset=file.tell()), FilePiece).piece
            if not piece:
                raise DeploymentError(f"{name} of the deployment has become shorter while it was fetched")
            file.write(piece)
