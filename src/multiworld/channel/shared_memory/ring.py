"""Decide which part of a ring of memory the next piece goes to, and when it is free again. Pure: no memory.

The sender takes pieces and the receiver releases them, in the same order. A piece never wraps around the end::

    0          tail              head        size
    |   free   |   in use        |   free    |      a piece goes behind head, or to 0 if it does not fit there
"""

from __future__ import annotations

from collections import deque
from typing import Final

ALIGNMENT: Final = 64


def room_for(size_bytes: int) -> int:
    """Return how many bytes a piece of that size takes of the ring."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


class RingSpace:
    """The sender's view of the ring. No piece may be larger than a quarter of it.

    If the receiver keeps no more than half of the ring, there is room for the next piece in the end: the rest is in at
    most two parts, one of which is as long as a piece; or in one, if less than a quarter was skipped before a piece.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.max_piece_bytes = size_bytes // 4
        self.num_taken = 0
        """How many pieces were taken, ever; the next one has this number."""
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
        room = room_for(size_bytes)
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
        self.num_taken += 1
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


class RingReads:
    """The receiver's view: pieces are released in the order in which they came, and read in any order.

    A piece that waits for its reader keeps all behind it. ``num_released`` and ``released_bytes`` count what has to be
    reported; whoever has done so sets them back. All bytes are those that pieces take of the ring.
    """

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()  # from the first one on that is not read yet
        self.num_released = self.released_bytes = self.kept_bytes = 0
        self.num_came = 0
        """How many pieces came, ever; the next one has this number."""

    def read(self, size_bytes: int) -> None:
        """A piece came and was read at once."""
        if self._pieces:
            piece = self.keep(0, size_bytes)
            piece.is_read = True
        else:
            self.num_came += 1
            self.num_released += 1
            self.released_bytes += room_for(size_bytes)

    def keep(self, offset: int, size_bytes: int) -> Piece:
        """A piece came that is read later."""
        self.num_came += 1
        piece = Piece(offset, size_bytes)
        self._pieces.append(piece)
        self.kept_bytes += piece.room_bytes
        return piece

    def done(self, piece: Piece) -> None:
        """A piece that was kept has been read."""
        piece.is_read = True
        while self._pieces and self._pieces[0].is_read:
            room_bytes = self._pieces.popleft().room_bytes
            self.num_released += 1
            self.released_bytes += room_bytes
            self.kept_bytes -= room_bytes

    def take_released(self) -> int:
        """Return how many pieces were released since the last call."""
        num_released, self.num_released = self.num_released, 0
        return num_released


class Piece:
    """A piece of the ring that waits to be read."""

    __slots__ = ("is_read", "offset", "room_bytes")

    def __init__(self, offset: int, size_bytes: int) -> None:
        self.offset, self.room_bytes, self.is_read = offset, room_for(size_bytes), False
