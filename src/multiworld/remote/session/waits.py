"""Which lines wait for nodes, for how long, and what they issue: collected only while somebody listens."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType

from .origins import Origin, line_of


@dataclass
class LineWaits:
    """One line of the user's. ``operations``: how often each waited there. Sizes in bytes."""

    line: str
    operations: Counter[str] = field(default_factory=Counter)
    waited_s: float = 0.0
    longest_s: float = 0.0
    received_bytes: int = 0
    num_issued: int = 0
    sent_bytes: int = 0

    @property
    def num_waits(self) -> int:
        return self.operations.total()


class WaitTable:
    """What was noted between ``listen`` and ``unlisten``. ``counts``: also operations that wait for nothing.

    Any thread.
    """

    def __init__(self, *, counts: bool = True) -> None:
        self.counts = counts
        self._lock = threading.Lock()  # guards the lines below
        self._lines: dict[str, LineWaits] = {}
        self._issued: dict[Origin, list[int]] = {}  # how many, and their bytes; lines are looked up at the end

    def listen(self) -> None:
        _tables.append(self)
        if self.counts:
            counting.append(self)

    def unlisten(self) -> None:
        _tables[:] = [each for each in _tables if each is not self]
        counting[:] = [each for each in counting if each is not self]

    def lines(self) -> list[LineWaits]:
        """Return a copy: those that waited longest first, then those that issued most."""
        with self._lock:
            found = {
                name: LineWaits(name, each.operations.copy(), each.waited_s, each.longest_s, each.received_bytes)
                for name, each in self._lines.items()
            }
            issued = [(place, counts[0], counts[1]) for place, counts in self._issued.items()]
        for place, num_issued, sent_bytes in issued:
            name = line_of(place)
            line = found.setdefault(name, LineWaits(name))
            line.num_issued += num_issued
            line.sent_bytes += sent_bytes
        return sorted(found.values(), key=lambda each: (-each.waited_s, -each.num_issued))

    def note_wait(self, operation: str, line: str, seconds: float, num_bytes: int) -> None:
        with self._lock:
            known = self._lines.setdefault(line, LineWaits(line))
            known.operations[operation] += 1
            known.waited_s += seconds
            known.longest_s = max(known.longest_s, seconds)
            known.received_bytes += num_bytes

    def count(self, place: Origin, num_bytes: int, num_issued: int = 1) -> None:
        if place is None:  # a command of our own
            return
        with self._lock:
            counts = self._issued.setdefault(place, [0, 0])
            counts[0] += num_issued
            counts[1] += num_bytes


_tables: list[WaitTable] = []
counting: list[WaitTable] = []
"""Those that count operations, too: looked at once for each batch."""


def count_commands(commands: Iterable[tuple[bytes, str, Origin]]) -> None:
    """Commands are sent: a record, the name of the operation, and where it was issued."""
    for record, _, place in commands:
        for table in counting.copy():
            table.count(place, len(record))


def count_bytes(place: Origin, num_bytes: int) -> None:
    """A large tensor is sent beside the commands."""
    for table in counting.copy():
        table.count(place, num_bytes, num_issued=0)


class Wait:
    """One wait: a context manager. ``num_bytes`` came with it. Also one that ends in an error is noted."""

    __slots__ = ("_begin", "_line", "_operation", "num_bytes")

    def __init__(self, operation: str, line: str) -> None:
        self._operation, self._line = operation, line
        self.num_bytes = 0

    def __enter__(self) -> Wait:
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _tables:
            seconds = time.perf_counter() - self._begin
            for table in _tables.copy():
                table.note_wait(self._operation, self._line, seconds, self.num_bytes)
