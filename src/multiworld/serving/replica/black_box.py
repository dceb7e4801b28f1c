"""What a replica was executing when it died: written where its host process can still read it afterwards.

A process that was killed can say nothing any more. Those that had sent to it would have to suspect all that it held.
So both processes map the memory, and what the replica wrote last stays there, however it ended. One process writes. The
other reads when the first has been reaped.
"""

from __future__ import annotations

from typing import Final

from ...wire.memory.shared_region import SharedRegion

PLACE_BYTES: Final = 16  # of a request's id: packets.ID_BYTES, which a host process would have to import torch for
NUM_PLACES: Final = 511  # the first place of the memory says whether they were enough
NOBODY: Final = bytes(PLACE_BYTES)
TOO_MANY: Final = b"\x01" * PLACE_BYTES
SIZE_BYTES: Final = (1 + NUM_PLACES) * PLACE_BYTES


class BlackBox:
    """Holds the ids, of 16 bytes, of the requests that are being executed."""

    def __init__(self, region: SharedRegion) -> None:
        self._memory = memoryview(region.array(region)).cast("B")
        self._free = list(range(NUM_PLACES, 0, -1))
        self._places: dict[bytes, int] = {}
        self._without_place: set[bytes] = set()

    @classmethod
    def create(cls) -> tuple[BlackBox, int]:
        """Return a new one, and the descriptor for the other process, which the caller closes. Raises OSError."""
        region, descriptor = SharedRegion.create(SIZE_BYTES)
        return cls(region), descriptor

    @classmethod
    def at(cls, descriptor: int) -> BlackBox:
        """Map one that another process has created. The descriptor stays the caller's. Raises OSError."""
        return cls(SharedRegion(descriptor, SIZE_BYTES))

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
        content = bytes(self._memory)
        if content[:PLACE_BYTES] != NOBODY:
            return None
        ids = [content[at : at + PLACE_BYTES] for at in range(PLACE_BYTES, len(content), PLACE_BYTES)]
        return [id_ for id_ in ids if id_ != NOBODY]

    def close(self) -> None:
        self._memory.release()

    def _write(self, place: int, what: bytes) -> None:
        self._memory[place * PLACE_BYTES : (place + 1) * PLACE_BYTES] = what


_carried: BlackBox | None = None


def carry(box: BlackBox) -> None:
    """This process is the one that the box is for."""
    global _carried
    _carried = box


def carried() -> BlackBox | None:
    """Return this process's box; None if nobody could read it."""
    return _carried
