"""What a replica was executing when it died: written where its host process can still read it afterwards.

Who is killed can say nothing any more, and whoever had sent to it would have to suspect all that it held. The memory
was made by the host process before it forked the replica, so both have it; what the replica wrote last is there
whatever ended it. One process writes, the other reads once the first has been reaped.
"""

from __future__ import annotations

import mmap
from typing import Final

from ..flow.packets import ID_BYTES

__all__ = ["BlackBox", "carried", "carry"]

NUM_PLACES: Final = 511  # the first place of the memory says whether they were enough
NOBODY: Final = bytes(ID_BYTES)
TOO_MANY: Final = b"\x01" * ID_BYTES


class BlackBox:
    """Holds the ids, of 16 bytes, of the requests that are being executed. Raises OSError without memory for it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, (1 + NUM_PLACES) * ID_BYTES)
        self._free = list(range(NUM_PLACES, 0, -1))
        self._places: dict[bytes, int] = {}
        self._without_place: set[bytes] = set()

    def begin(self, id_: bytes) -> None:
        """It is about to be executed. Once is enough."""
        if id_ in self._places or id_ in self._without_place:
            return
        if self._free:
            place = self._places[id_] = self._free.pop()
            self._write(place, id_)
        else:
            self._without_place.add(id_)
            self._write(0, TOO_MANY)

    def end(self, id_: bytes) -> None:
        """It has been executed."""
        place = self._places.pop(id_, 0)
        if place:
            self._write(place, NOBODY)
            self._free.append(place)
        elif self._without_place:
            self._without_place.discard(id_)
            if not self._without_place:
                self._write(0, NOBODY)

    def read(self) -> list[bytes] | None:
        """Return what is being executed, or was last; None if that is more than there is room for."""
        content = self._memory[:]
        if content[:ID_BYTES] != NOBODY:
            return None
        ids = [content[at : at + ID_BYTES] for at in range(ID_BYTES, len(content), ID_BYTES)]
        return [id_ for id_ in ids if id_ != NOBODY]

    def close(self) -> None:
        self._memory.close()

    def _write(self, place: int, what: bytes) -> None:
        self._memory[place * ID_BYTES : (place + 1) * ID_BYTES] = what


_carried: BlackBox | None = None


def carry(box: BlackBox) -> None:
    """This process, which was just forked, is the one that the box is for."""
    global _carried
    _carried = box


def carried() -> BlackBox | None:
    """Return this process's box; None if nobody could read it."""
    return _carried
