"""Lent memory: payloads that one process lays into memory which another maps, for the other to keep as they are.

The writer takes a place and copies a payload there; the reader has a tensor that is that memory, for as long as
anything refers to it, and changes it as it likes. So a large payload is copied once. When the tensor is gone, the
reader says so in a word of the place, which it alone writes. The writer looks at these words when it wants a place, and
waits for none: what there is no place for goes another way. So what a reader keeps for ever costs its place, no more.

A process that forks shares what it keeps with its child, where each sees what the other changes. Nobody knows when the
child has done with it, so it never leaves its place.

``LentSpace`` decides which memory a payload gets. Pure. The other two are the ends of the lent memory.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import native
from ...errors import ProtocolError
from ...wire.memory.shared_region import SharedRegion

NUM_PLACES = 64
LEFT_AT = 2048
"""Of the page in which the words of a pipe are: here are those of the places, which say what has left them last."""
PAGE_BYTES = 4096
WORD_BYTES = 8
MAX_KEPT_BYTES = 8 * 1024 * 1024  # whoever sends copies it at once, in about a millisecond
MAX_SEGMENTS = 256  # each of which costs one or two microseconds
MAX_LENT_BYTES = 64 * 1024 * 1024
ALL_LENT_BYTES = 512 * 1024 * 1024  # of one rank: addresses; only the used part takes memory
assert LEFT_AT + NUM_PLACES * WORD_BYTES <= PAGE_BYTES


def lent_bytes(num_readers: int) -> int:
    """Return the size of what one rank lends to each of so many others."""
    return min(MAX_LENT_BYTES, ALL_LENT_BYTES // max(num_readers, 1)) // PAGE_BYTES * PAGE_BYTES


class Place(NamedTuple):
    """Where a payload lies: ``word`` says so when it has left, by its ``number`` in this memory, from 1 on."""

    offset: int
    size_bytes: int
    word: int
    number: int

    @property
    def end(self) -> int:
        return self.offset + _room_for(self.size_bytes)


class LentSpace:
    """Which places are taken."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken: list[Place] = []
        """By their offsets."""
        self._free = list(range(NUM_PLACES - 1, -1, -1))
        self._last = 0

    def take(self, size_bytes: int) -> Place | None:
        """Take a place, the first that is large enough: its pages are there already. None: there is none."""
        room = _room_for(size_bytes)
        offset = next((begin for begin, end in self.gaps() if end - begin >= room), None)
        if offset is None or not self._free:
            return None
        self._last += 1
        place = Place(offset, size_bytes, self._free.pop(), self._last)
        bisect.insort(self.taken, place)
        return place

    def leave(self, places: Sequence[Place]) -> None:
        """These are free again."""
        for place in places:
            self.taken.remove(place)
            self._free.append(place.word)

    def gaps(self) -> list[tuple[int, int]]:
        """Return from where to where there is nothing."""
        ends = [0, *(place.end for place in self.taken)]
        begins = [*(place.offset for place in self.taken), self.size_bytes]
        return [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end]


class LentWriter:
    """The writer's end; ``page`` and ``begin`` say where words and places are in the region. One thread at a time."""

    def __init__(self, region: SharedRegion, page: int, begin: int, size_bytes: int) -> None:
        self._region, self._begin = region, begin
        self._left = _words(region, page)
        self._space = LentSpace(size_bytes)

    def put(self, segments: Sequence[memoryview], size_bytes: int) -> Place | None:
        """Copy a payload to a place. None: there is no place for it."""
        if size_bytes > MAX_KEPT_BYTES or len(segments) > MAX_SEGMENTS:
            return None
        self._collect()
        place = self._space.take(size_bytes)
        if place is not None:
            at = self._begin + place.offset
            for segment in segments:
                self._region.write(at, segment)
                at += len(segment)
        return place

    def forget(self) -> bool:
        """Give the pages back in which nothing lies. Return whether something lies in others."""
        self._collect()
        for begin, end in self._space.gaps():
            self._region.forget(self._begin + begin, end - begin)
        return bool(self._space.taken)

    def _collect(self) -> None:
        self._space.leave([place for place in self._space.taken if self._left[place.word] == place.number])


class LentReader:
    """The reader's end. One thread at a time; what it has handed out is given back by any."""

    def __init__(self, region: SharedRegion, page: int, begin: int, size_bytes: int) -> None:
        _watch_forks()
        self._region, self._begin, self._size_bytes = region, begin, size_bytes
        self._left, self._numbers = _words(region, page), [0] * NUM_PLACES
        self._is_over = threading.Event()

    def tensor(self, place: Place) -> Tensor:
        """Return what lies at a place, ``[size_bytes]`` uint8; ProtocolError if that cannot be."""
        offset, size_bytes, word, number = place
        is_inside = 0 < size_bytes <= MAX_KEPT_BYTES and offset + size_bytes <= self._size_bytes
        if not is_inside or offset % PAGE_BYTES or word >= NUM_PLACES:
            raise ProtocolError(
                f"a message of {size_bytes} bytes at {offset}, word {word}, of lent memory of {self._size_bytes} bytes"
            )
        if self._left[word] != self._numbers[word] or number <= self._numbers[word]:
            raise ProtocolError(f"place {word} of lent memory is given away anew, but what was there has not left")
        self._numbers[word] = number
        array = self._region.array(_Keeper(self._region, self._begin, self._left, place, self._is_over))
        return torch.frombuffer(array, dtype=torch.uint8, count=size_bytes, offset=self._begin + offset)

    def close(self) -> None:
        """Nothing comes any more, and nobody may look after the pages: from now on each place gives back its own."""
        self._is_over.set()


class _Keeper:
    """Lives as long as the tensor; with it, what it was made for leaves its place."""

    __slots__ = ("_begin", "_is_over", "_last_fork", "_left", "_place", "_region")

    def __init__(self, region: SharedRegion, begin: int, left: Any, place: Place, is_over: threading.Event) -> None:
        last_fork = _last_fork  # before the look at who forks: of two that do both at once, this takes the older one
        self._last_fork = None if _forking else last_fork
        self._region, self._begin, self._left, self._place, self._is_over = region, begin, left, place, is_over

    def __del__(self) -> None:
        place = self._place
        if self._last_fork is None or self._last_fork is not _last_fork:  # a child, or the parent, may have it still
            return
        if self._is_over.is_set():
            self._region.forget(self._begin + place.offset, place.end - place.offset)
        _leave(self._left, place)


_last_fork = object()
_forking: set[int] = set()
"""Threads that fork in this moment: what comes meanwhile may be there twice in the end."""
_forks_lock = threading.Lock()
_watches_forks = False


def _watch_forks() -> None:
    global _watches_forks
    with _forks_lock:
        if not _watches_forks:  # there is no way to take it back
            _watches_forks = True
            os.register_at_fork(before=_fork_begins, after_in_parent=_has_forked, after_in_child=_forking.clear)


def _fork_begins() -> None:
    global _last_fork
    _forking.add(threading.get_ident())
    _last_fork = object()


def _has_forked() -> None:
    _forking.discard(threading.get_ident())


def _room_for(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _words(region: SharedRegion, page: int) -> Any:
    return (ctypes.c_uint64 * NUM_PLACES).from_address(region.address + page + LEFT_AT)


if native.holding is not None:
    _store = native.holding.multiworld_leave
    _store.argtypes, _store.restype = (ctypes.c_void_p, ctypes.c_uint64), None

    def _leave(left: Any, place: Place) -> None:
        _store(ctypes.addressof(left) + WORD_BYTES * place.word, place.number)

else:  # on x86, where a store comes after the loads before it

    def _leave(left: Any, place: Place) -> None:
        left[place.word] = place.number
