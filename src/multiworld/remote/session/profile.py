"""``remote.profile()``: which lines of a program wait for nodes, and what each line issues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from . import open_connections
from .waits import LineWaits, WaitTable

MAX_SHOWN = 30


class Profile:
    """``print`` shows it, also while it runs. ``lines``: those that waited longest first, then those that issued most.

    ``duration_s``: of the block so far.
    """

    def __init__(self, table: WaitTable) -> None:
        self._table = table
        self._begin, self._end = time.perf_counter(), 0.0

    def end(self) -> None:
        self._end = time.perf_counter()

    @property
    def lines(self) -> list[LineWaits]:
        return self._table.lines()

    @property
    def duration_s(self) -> float:
        return (self._end or time.perf_counter()) - self._begin

    @property
    def waited_s(self) -> float:
        """Of all threads together."""
        return sum(line.waited_s for line in self.lines)

    def __str__(self) -> str:
        lines = self.lines
        waited_s = sum(line.waited_s for line in lines)
        num_waits = sum(line.num_waits for line in lines)
        head = f"waited {_seconds(waited_s)} of {_seconds(self.duration_s)}, {num_waits} times"
        rows: list[tuple[str, ...]] = [
            ("WAITED", "LONGEST", "TIMES", "RECEIVED", "ISSUED", "SENT", "LINE", "WAITS FOR")
        ]
        rows += [_row(line) for line in lines[:MAX_SHOWN]]
        left_out = [f"... and {len(lines) - MAX_SHOWN} lines more"] if len(lines) > MAX_SHOWN else []
        return "\n".join([head, *_aligned(rows), *left_out])


@contextmanager
def profile() -> Iterator[Profile]:
    """Note the waits of all threads inside, line by line, and count the operations that each line issues."""
    table = WaitTable()
    _send_what_waits()  # it was issued before
    table.listen()
    found = Profile(table)
    try:
        yield found
    finally:
        _send_what_waits()
        table.unlisten()
        found.end()


def _send_what_waits() -> None:
    for connection in open_connections.all_present():
        for session in connection.alive_sessions():
            session.flush()


def _row(line: LineWaits) -> tuple[str, ...]:
    if not line.num_waits:
        return ("-", "-", "-", "-", f"{line.num_issued:,}", _size(line.sent_bytes), line.line, "")
    waited = (_seconds(line.waited_s), _seconds(line.longest_s), f"{line.num_waits:,}", _size(line.received_bytes))
    return (*waited, f"{line.num_issued:,}", _size(line.sent_bytes), line.line, ", ".join(line.operations))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Return lines in columns: figures to the right, text to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column >= len(widths) - 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _seconds(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def _size(num_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"
