"""The last lines that a member wrote, numbered, so that somebody can follow them. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT_BYTES = 64 * 1024
LONGEST = 4096  # bytes of a line


@dataclass(frozen=True, kw_only=True)
class LinesTold:
    """Some of a member's lines. ``number``: how many it has written; ``left_out``: how many were lost before these."""

    lines: tuple[str, ...]
    number: int
    left_out: int = 0


class RecentLines:
    """At most ``KEPT_BYTES`` of them."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._size_bytes, self._number = 0, 0

    def take(self, lines: bytes) -> None:
        """Take whole lines in."""
        for line in lines.splitlines():
            self._lines.append(line[:LONGEST])
            self._size_bytes += len(self._lines[-1]) + 1
            self._number += 1
        while self._size_bytes > KEPT_BYTES:
            self._size_bytes -= len(self._lines.popleft()) + 1

    def last(self, count: int) -> LinesTold:
        """Return the last ``count`` lines."""
        return self._told(min(count, len(self._lines)), 0)

    def since(self, number: int) -> LinesTold:
        """Return what came after the first ``number`` lines, as far as it is kept."""
        new = max(0, self._number - number)
        return self._told(min(new, len(self._lines)), max(0, new - len(self._lines)))

    def _told(self, count: int, left_out: int) -> LinesTold:
        chosen = list(self._lines)[len(self._lines) - count :]
        lines = tuple(line.decode(errors="replace") for line in chosen)
        return LinesTold(lines=lines, number=self._number, left_out=left_out)
