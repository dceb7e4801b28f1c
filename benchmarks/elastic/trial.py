"""One measurement: its processes, their journal and folder, all of which are gone after it."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .journal import Journal
from .node import Node

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Trial"]

SHOWN_ENTRIES = 16


class Trial:
    """Leaving the ``with`` block kills all ``nodes``, after it has shown what they said if the trial failed.

    ``label``: the side that is measured. ``keep``: a folder of the caller's, which stays.
    """

    def __init__(self, label: str, *, keep: Path | None = None) -> None:
        self.name = f"bench{secrets.token_hex(6)}"
        self.folder = keep or Path(tempfile.mkdtemp(prefix="multiworld-benchmark-"))
        self.journal_path = self.folder / f"journal-{self.name}"
        self.journal = Journal(self.journal_path)
        self.nodes: list[Node] = []
        self._label, self._is_kept = label, keep is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self.show()
        finally:
            for node in self.nodes:
                node.kill()
            self.journal.close()
            if not self._is_kept:
                shutil.rmtree(self.folder, ignore_errors=True)

    def show(self) -> None:
        """Print what every node has said and the last entries of the journal, without ids of samples."""
        for node in self.nodes:
            print(f"--- {self._label}: {node.name}, ended {node.returncode}\n{node.tail}", file=sys.stderr)
        self.journal.read()
        for entry in self.journal.entries[-SHOWN_ENTRIES:]:
            fields = {name: value for name, value in entry.fields.items() if name != "ids"}
            print(f"    {entry.at:.3f} {entry.event} pid {entry.pid} {fields}", file=sys.stderr)
