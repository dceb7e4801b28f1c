"""A pipe: large payloads go one way from one process to another, through a window of memory that both map.

The writer and the reader each have a word that counts the bytes which they have moved, ever, and look at the other's
word instead of sending messages: a piece costs no system call. Who finds nothing to do for a moment *rests*: says so in
another word of its own, and is told by a message (a *bell*) when there is something again. Each writes its own word
first and then reads the other's, with a memory barrier in between, so of two that act at once at least one sees what
the other did: nobody rests while the other believes that it looks.

Payloads follow each other without gaps; frames say which ones, and how long they are.

An end is moved by the native core, if that was built, or by Python, on processors whose memory is ordered well enough.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from typing import Protocol

from ... import native
from ...errors import ProtocolError
from ...wire.memory.copying import copy_memory
from ...wire.progress.polling import YIELD_AFTER_S

WINDOW_BYTES = 4 * 1024 * 1024
PAGE_BYTES = 4096
"""Holds the four words of a pipe, each in a cache line of its own; at first all are 0."""
WRITTEN_AT, TAKEN_AT, WRITER_RESTS_AT, READER_RESTS_AT = 0, 128, 256, 384
NATIVE_CHUNK_BYTES = 256 * 1024
LIMIT_S = 5e-3  # of one call: a turn takes a fraction of that
PYTHON_CHUNK_BYTES = 512 * 1024  # each costs a few microseconds more here
MASK = (1 << 64) - 1
HALF = 1 << 63
NONSENSE = MASK
WORKS = native.core is not None or platform.machine() in ("x86_64", "AMD64")


class PipeEnd(Protocol):
    """One end of a pipe. Its methods are called by one thread at a time, and raise ProtocolError about the other end.

    ``bell`` says, after each of them but ``wake``, whether the other end rests and is to be told by a message.
    """

    @property
    def bell(self) -> bool: ...

    @property
    def position(self) -> int:
        """Return how many bytes have gone by this end, modulo 2**64."""

    def push(self, source: int, size_bytes: int, spin_s: float) -> int:
        """Write from an address. Return how many bytes were written when it was all, a bell, or no room for so long.

        It also returns after ``LIMIT_S``, as it does from ``pull``, even if the other end does nothing.
        """

    def pull(self, target: int | None, size_bytes: int, spin_s: float, *, past_caches: bool, not_yet: bool) -> int:
        """Read to an address, or to nowhere. Return how many bytes were read when it was all, a bell, or nothing came.

        ``not_yet`` tells the writer of no room.
        """

    def rest_writing(self, *, early: bool) -> bool:
        """Stop looking until a bell says that half of the window is free. False: it is.

        ``early``: although it may be, if the reader has still something to read.
        """

    def rest_reading(self, *, early: bool, end: int) -> bool:
        """Stop looking until a bell says that more was written. False: there is something.

        ``early``: although there is, if the writer has still to write some of what ends at that position.
        """

    def wake(self) -> None:
        """Look again."""

    def is_level(self) -> bool:
        """Whether both have moved the same bytes."""


class _End(ctypes.Structure):
    _fields_ = (
        ("window", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("chunk", ctypes.c_uint64),
        ("count", ctypes.c_void_p),
        ("their_count", ctypes.c_void_p),
        ("rest", ctypes.c_void_p),
        ("their_rest", ctypes.c_void_p),
        ("position", ctypes.c_uint64),
        ("rung", ctypes.c_uint64),
        ("bell", ctypes.c_uint64),
        ("interruptions", ctypes.c_uint64),
    )


if native.core is not None and native.holding is not None:
    _push, _pull = native.core.multiworld_push, native.core.multiworld_pull
    _rest_writing, _rest_reading = native.holding.multiworld_rest_writing, native.holding.multiworld_rest_reading
    _wake = native.holding.multiworld_wake
    _push.restype = _pull.restype = ctypes.c_uint64
    _push.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    _pull.argtypes = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int,
    )  # fmt: skip
    _rest_writing.argtypes = (ctypes.c_void_p, ctypes.c_int)
    _rest_reading.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
    _wake.argtypes, _wake.restype = (ctypes.c_void_p,), None


class NativeEnd:
    """An end that the native core moves; it lets go of the interpreter meanwhile."""

    def __init__(self, window: int, words: tuple[int, int, int, int], size: int) -> None:
        self._end = _End(window, size, NATIVE_CHUNK_BYTES, *words)
        self._at = ctypes.addressof(self._end)
        _, self._their_count, self._rest, self._their_rest = map(ctypes.c_uint64.from_address, words)

    @property
    def bell(self) -> bool:
        return bool(self._end.bell)

    @property
    def position(self) -> int:
        return int(self._end.position)

    def push(self, source: int, size_bytes: int, spin_s: float) -> int:
        return checked(_push(self._at, source, size_bytes, int(spin_s * 1e9), int(LIMIT_S * 1e9)))

    def pull(self, target: int | None, size_bytes: int, spin_s: float, *, past_caches: bool, not_yet: bool) -> int:
        spin_ns, limit_ns = int(spin_s * 1e9), int(LIMIT_S * 1e9)
        return checked(_pull(self._at, target, size_bytes, spin_ns, limit_ns, past_caches, not_yet))

    def rest_writing(self, *, early: bool) -> bool:
        return bool(_rest_writing(self._at, early))

    def rest_reading(self, *, early: bool, end: int) -> bool:
        return bool(_rest_reading(self._at, early, end))

    def wake(self) -> None:
        _wake(self._at)

    def is_level(self) -> bool:
        return bool(self._their_count.value == self._end.position)


class PythonEnd:
    """An end that Python moves. See ``native/core.c``, which is the same."""

    def __init__(self, window: int, words: tuple[int, int, int, int], size: int) -> None:
        self.bell: bool = False
        self.position: int = 0
        self._window, self._size = window, size
        self._count, self._their_count, self._rest, self._their_rest = map(ctypes.c_uint64.from_address, words)
        self._rung = self.interruptions = 0
        self._barrier = threading.Lock()

    def push(self, source: int, size_bytes: int, spin_s: float) -> int:
        moved, self.bell, over_at = 0, False, time.perf_counter() + LIMIT_S
        while moved < size_bytes and not self.bell and time.perf_counter() < over_at:
            room = self._watch(self.position - self._size, spin_s)
            if room == 0:
                break
            at, part = self._next_part(size_bytes - moved, room)
            copy_memory(self._window + at, source + moved, part)
            moved += part
            self._publish(part)
            self._ring()
        return moved

    def pull(self, target: int | None, size_bytes: int, spin_s: float, *, past_caches: bool, not_yet: bool) -> int:
        moved, self.bell, over_at = 0, False, time.perf_counter() + LIMIT_S
        while moved < size_bytes and not self.bell and time.perf_counter() < over_at:
            there = self._watch(self.position, spin_s)
            if there == 0:
                break
            at, part = self._next_part(size_bytes - moved, there)
            if target is not None:
                copy_memory(target + moved, self._window + at, part)
            moved += part
            self._publish(part)
            if not not_yet and there - part <= self._size // 2:
                self._ring()
        return moved

    def rest_writing(self, *, early: bool) -> bool:
        self._begin_rest()
        used = self.position - self._their_count.value & MASK
        if used > self._size or (used == 0 if early else used <= self._size // 2):
            self.wake()
            return False
        self._ring()
        return True

    def rest_reading(self, *, early: bool, end: int) -> bool:
        self._begin_rest()
        written = self._their_count.value
        there = written - self.position & MASK
        if there > self._size or (there > 0 and not (early and _signed(end - written) > 0)):
            self.wake()
            return False
        self._ring()
        return True

    def wake(self) -> None:
        rest = self._rest.value
        if rest & 1:
            self._rest.value = rest + 1

    def is_level(self) -> bool:
        return self._their_count.value == self.position

    def _watch(self, seen: int, spin_s: float) -> int:
        """Return how far their count is beyond what was seen, once it is or after so long."""
        beyond = _signed(self._their_count.value - seen)
        if beyond <= 0 and spin_s:
            began, waited = time.perf_counter(), 0.0
            while beyond <= 0 and waited < spin_s:
                if waited > YIELD_AFTER_S:
                    os.sched_yield()
                beyond = _signed(self._their_count.value - seen)
                waited = time.perf_counter() - began
        if not 0 <= beyond <= self._size:
            checked(NONSENSE)
        return beyond

    def _next_part(self, wanted: int, possible: int) -> tuple[int, int]:
        at = self.position % self._size
        return at, min(wanted, possible, PYTHON_CHUNK_BYTES, self._size - at)

    def _publish(self, size_bytes: int) -> None:
        self.position = self.position + size_bytes & MASK
        self._count.value = self.position
        self._order()

    def _order(self) -> None:
        """Let what was written before be seen before what is read afterwards: taking a lock is such a barrier."""
        with self._barrier:
            pass

    def _ring(self) -> None:
        rest = self._their_rest.value
        if rest & 1 and rest != self._rung:
            self._rung, self.bell = rest, True

    def _begin_rest(self) -> None:
        self._rest.value |= 1
        self._order()
        self.bell = False


def open_writer(page: int, window: int) -> PipeEnd:
    """Return the writer's end of a pipe with its words at one address and its window at another."""
    return _kind()(window, writer_words(page), WINDOW_BYTES)


def open_reader(page: int, window: int) -> PipeEnd:
    """Return the reader's end of a pipe."""
    return _kind()(window, reader_words(page), WINDOW_BYTES)


def writer_words(page: int) -> tuple[int, int, int, int]:
    """Return where the writer's count, the reader's, and the words that say whether each rests are."""
    return page + WRITTEN_AT, page + TAKEN_AT, page + WRITER_RESTS_AT, page + READER_RESTS_AT


def reader_words(page: int) -> tuple[int, int, int, int]:
    """As ``writer_words``, the reader's first."""
    return page + TAKEN_AT, page + WRITTEN_AT, page + READER_RESTS_AT, page + WRITER_RESTS_AT


def _kind() -> type[NativeEnd | PythonEnd]:
    return NativeEnd if native.core is not None else PythonEnd


def _signed(difference: int) -> int:
    return (difference + HALF & MASK) - HALF


def checked(moved: int) -> int:
    """Return what an end of the native core has moved or seen; raise ProtocolError for nonsense."""
    if moved == NONSENSE:
        raise ProtocolError("the other end of shared memory counts more than there can be in it")
    return moved
