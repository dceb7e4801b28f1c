"""Decide which part of a ring of memory the next piece goes to. Pure: offsets and sizes, no memory.

The sender takes pieces and the receiver releases them, in the same order. A piece never wraps around the end::

    0          tail              head        size
    |   free   |   in use        |   free    |      a piece goes behind head, or to 0 if it does not fit there
"""

from __future__ import annotations

from collections import deque

__all__ = ["ALIGNMENT", "RingSpace"]

ALIGNMENT = 64


class RingSpace:
    """The sender's view of the ring. No piece may be larger than a quarter of it.

    If the receiver keeps at most a quarter of the ring without saying that it was released, there is always room for
    the next piece in the end: of the free three quarters, at least one of the two parts is as long as a piece.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.max_piece_bytes = size_bytes // 4
        self._head = 0
        self._used = 0
        self._spans: deque[int] = deque()  # of the pieces in use, with what was skipped before them

    @property
    def num_pieces(self) -> int:
        """How many pieces are in use."""
        return len(self._spans)

    def take(self, size_bytes: int) -> int | None:
        """Take a piece and return its offset; None: there is no room now."""
        assert 0 < size_bytes <= self.max_piece_bytes, f"{size_bytes} of at most {self.max_piece_bytes} bytes"
        room = -(-size_bytes // ALIGNMENT) * ALIGNMENT
        if not self._spans:
            self._head = 0  # memory that was used just now is in the processor's cache
        tail = (self._head - self._used) % self.size_bytes
        skipped = 0
        if self._head >= tail and self._used < self.size_bytes:
            behind = self.size_bytes - self._head
            if behind < room:
                skipped = behind
                if tail < room:
                    return None
        elif tail - self._head < room:
            return None
        offset = 0 if skipped else self._head
        self._spans.append(room + skipped)
        self._used += room + skipped
        self._head = (offset + room) % self.size_bytes
        return offset

    def release(self, num_pieces: int) -> bool:
        """The receiver needs the oldest pieces no more. False if it names more than there are."""
        if num_pieces > len(self._spans):
            return False
        for _ in range(num_pieces):
            self._used -= self._spans.popleft()
        return True
