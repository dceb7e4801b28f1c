"""When a node's next snapshot is taken, and when to give up a node that is lost again and again. Pure."""

from __future__ import annotations

from typing import Final

MAX_LOG_BYTES: Final = 256 * 1024 * 1024
"""A log that has become so large is cut by a snapshot at once."""
BOUND: Final = 2
"""A log that is so many times as large has the master wait for that snapshot."""
MAX_LOSSES: Final = 3
"""A node that is lost so often at the same record is given up: what it executes there may be what kills it."""
LOOKS: Final = 10
"""How often in ``every_s`` somebody looks whether a snapshot is due, while nothing is issued."""


class Schedule:
    """``every_s``: from the beginning of one snapshot to the next, if something was issued meanwhile."""

    def __init__(self, every_s: float, *, max_log_bytes: int = MAX_LOG_BYTES) -> None:
        if not every_s > 0:
            raise ValueError(f"every_s={every_s!r}: expected seconds, more than 0")
        self._every_s, self._max_log_bytes = every_s, max_log_bytes
        self._last: float | None = None  # when the last attempt began

    def is_due(self, *, num_records: int, log_bytes: int, now: float, has_gap: bool = False) -> bool:
        """Whether to take a snapshot now. ``num_records``, ``log_bytes``: of the log.

        ``has_gap``: something in it can't be sent again.
        """
        if self._last is None or has_gap:
            return True
        if not num_records:
            return False
        return now - self._last >= self._every_s or log_bytes > self._max_log_bytes

    def wait_s(self, *, now: float) -> float:
        """Return after how long to look again, if the log does not become full before."""
        if self._last is None:
            return 0.0
        return max(self._last + self._every_s - now, self._every_s / LOOKS)

    def began(self, *, now: float) -> None:
        """A snapshot is being taken."""
        self._last = now


class Losses:
    """Losses of one node in a row, between which it got no further."""

    def __init__(self) -> None:
        self._position, self._num = -1, 0

    def may_return(self, position: int) -> bool:
        """The node was lost, and had confirmed all records before ``position`` ever: whether to make it anew."""
        self._num = self._num + 1 if position <= self._position else 1
        self._position = max(position, self._position)
        return self._num <= MAX_LOSSES
