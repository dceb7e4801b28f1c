"""Slots: short descriptions of the payloads that one process has laid into a ring of memory which another maps.

The writer fills the next slot and counts it; the reader looks at that count, and takes the slots in their order. So a
message costs no system call, unless its reader waits: then that *rests*, as the reader of a pipe does (``pipe``), and
is told by a message, once, when there is something. Slots that the reader has taken are free again.

A slot is 128 bytes, all integers little-endian::

    0      8      16       24     32      40         44
    | seq  | key  | offset | size | piece | meta len | meta … |
    | u64  | i64  | u64    | u64  | u64   | u32      | 84     |

The reader also counts the pieces of the ring that it has read, for the writer to use again, and the bytes that have
left the window of eager messages (``outbox``). It says so from time to time only; a writer who waits for either
rests, too, and is told.

``seq`` and ``key`` are the message's; its payload of ``size`` bytes lies at ``offset`` of the ring, as the piece of
that number (from 0 on), and ``meta`` describes it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from typing import NamedTuple, Protocol

from ... import native
from ...errors import ProtocolError
from ...wire.memory.copying import copy_memory, memory_at
from ...wire.progress.polling import YIELD_AFTER_S, Poller
from .pipe import MASK, NONSENSE, NativeEnd, PythonEnd, checked, reader_words, writer_words

NUM_SLOTS = 128
SLOT_BYTES = 128
WORDS_AT = 1024  # of the page in which the words of a pipe are
RELEASED_AT, CONSUMED_AT, RESTS_FOR_ROOM_AT, UNUSED_AT = 512, 640, 768, 896
SLOTS_BYTES = NUM_SLOTS * SLOT_BYTES
SLOT = struct.Struct("<QqQQQI84s")
MAX_META_BYTES = 84
assert SLOT.size == SLOT_BYTES


class Slot(NamedTuple):
    """What a slot says. The writer may have written nonsense."""

    seq: int
    key: int
    offset: int
    size_bytes: int
    piece: int
    meta: bytes


HOLDING_BYTES = 64 * 1024
"""A payload up to this size is copied in a moment, with the interpreter lock held."""

if native.core is not None and native.holding is not None:
    _beyond, _put, _take = native.holding.multiworld_beyond, native.core.multiworld_put, native.core.multiworld_take
    _free = native.holding.multiworld_free
    _free.restype, _free.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
    _rest = native.holding.multiworld_rest
    _rest.restype, _rest.argtypes = ctypes.c_int, (ctypes.c_void_p,)
    _look = native.core.multiworld_look
    _look.restype, _look.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
    _put_holding, _take_holding = native.holding.multiworld_put, native.holding.multiworld_take
    _beyond.restype, _beyond.argtypes = ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_uint64)
    for _function in (_put, _take, _put_holding, _take_holding):
        _function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
        _function.restype = ctypes.c_int


def _room_words(words: int, count_at: int) -> tuple[int, int, int, int]:
    """Return the words of the writer for a count of what has become free; nobody uses the other two."""
    return words + UNUSED_AT, words + count_at, words + RESTS_FOR_ROOM_AT, words + UNUSED_AT


def _freed_words(words: int, count_at: int) -> tuple[int, int, int, int]:
    """Return the words of the reader for the same."""
    return words + count_at, words + UNUSED_AT, words + UNUSED_AT, words + RESTS_FOR_ROOM_AT


class SlotEnd(Protocol):
    """What moves one end of the slots: a ``PipeEnd`` that counts slots in the place of bytes."""

    @property
    def bell(self) -> bool:
        """Whether the other end is to be told, after ``put`` and ``rest_reading``."""

    def beyond(self, behind: int) -> int:
        """Return by how many slots the other end's count is beyond ours less ``behind``; NONSENSE if that can't be."""

    def put(self, target: int, source: int, size_bytes: int) -> bool:
        """Copy a payload, and count the slot that says so. Return ``bell``."""

    def take(self, target: int | None, source: int, size_bytes: int) -> None:
        """Copy a payload, unless it goes nowhere, and count its slot."""

    def advance(self, count: int) -> None:
        """Count without telling."""

    def free(self, count: int, *, asks: bool) -> bool:
        """Count, and say so. Return whether the other end is to be told, if that is asked for."""

    def rest(self) -> bool:
        """Be told when the other end's count is beyond ours. False: it is. One that rests already rests anew."""

    def wake(self) -> None:
        """Need not be told."""

    @property
    def rests(self) -> bool:
        """Whether ``rest`` was the last word, not ``wake``, be it told or not. Any thread."""

    @property
    def other_rests(self) -> bool:
        """Whether the other end is to be told of the next thing. Any thread."""

    @property
    def interruptions(self) -> int:
        """Return how many there were. Any thread."""

    def look(self, fd: int, spin_s: float, seen: int) -> bool:
        """Return whether the other end's count is beyond ours, once it is or after so long. Any thread.

        Sooner, if there is something to read from a socket, or more than so many interruptions were seen.
        """

    def interrupt(self) -> None:
        """End a ``look`` that another thread takes."""


class NativeSlots(NativeEnd):
    """An end that the native core moves."""

    def rest(self) -> bool:
        return bool(_rest(self._at))

    def advance(self, count: int) -> None:
        self._end.position += count

    def free(self, count: int, *, asks: bool) -> bool:
        return bool(_free(self._at, count, asks))

    @property
    def rests(self) -> bool:
        return bool(self._rest.value & 1)

    @property
    def other_rests(self) -> bool:
        rest = self._their_rest.value
        return bool(rest & 1) and rest != self._end.rung

    @property
    def interruptions(self) -> int:
        return int(self._end.interruptions)

    def look(self, fd: int, spin_s: float, seen: int) -> bool:
        return bool(_look(self._at, fd, int(spin_s * 1e9), seen))

    def interrupt(self) -> None:
        self._end.interruptions += 1

    def beyond(self, behind: int) -> int:
        return int(_beyond(self._at, behind))

    def put(self, target: int, source: int, size_bytes: int) -> bool:
        put = _put_holding if size_bytes <= HOLDING_BYTES else _put
        return bool(put(self._at, target, source, size_bytes))

    def take(self, target: int | None, source: int, size_bytes: int) -> None:
        (_take_holding if size_bytes <= HOLDING_BYTES else _take)(self._at, target, source, size_bytes)


class PythonSlots(PythonEnd):
    """An end that Python moves."""

    def rest(self) -> bool:
        rest = (self._rest.value + 1) | 1
        self._rest.value = rest
        self._order()
        if self._their_count.value == self.position:
            return True
        self._rest.value = rest + 1
        return False

    def advance(self, count: int) -> None:
        self.position = self.position + count & MASK

    def free(self, count: int, *, asks: bool) -> bool:
        self.bell = False
        self._publish(count)
        if asks:
            self._ring()
        return self.bell

    @property
    def rests(self) -> bool:
        return bool(self._rest.value & 1)

    @property
    def other_rests(self) -> bool:
        rest = self._their_rest.value
        return bool(rest & 1) and rest != self._rung

    def look(self, fd: int, spin_s: float, seen: int) -> bool:
        poller, began, waited = Poller(fd), time.perf_counter(), 0.0
        while self._their_count.value == self.position:
            if waited >= spin_s or self.interruptions != seen or poller.poll(0):
                return False
            if waited > YIELD_AFTER_S:
                os.sched_yield()
            waited = time.perf_counter() - began
        return True

    def interrupt(self) -> None:
        self.interruptions += 1

    def beyond(self, behind: int) -> int:
        beyond = self._their_count.value - self.position + behind & MASK
        return beyond if beyond <= self._size else NONSENSE

    def put(self, target: int, source: int, size_bytes: int) -> bool:
        copy_memory(target, source, size_bytes)
        self.bell = False
        self._publish(1)
        self._ring()
        return self.bell

    def take(self, target: int | None, source: int, size_bytes: int) -> None:
        if target is not None:
            copy_memory(target, source, size_bytes)
        self._publish(1)


class SlotWriter:
    """The writer's end: the addresses of the words and of the slots. One thread at a time.

    ``memory`` keeps them mapped.
    At most ``max_pieces`` are in use at any time, and ``window_bytes`` unconsumed.
    """

    def __init__(self, words: int, slots: int, memory: object, *, max_pieces: int, window_bytes: int) -> None:
        self._end: SlotEnd = _kind()(slots, writer_words(words), NUM_SLOTS)
        self._room: SlotEnd = _kind()(0, _room_words(words, RELEASED_AT), max_pieces)
        self._window: SlotEnd = _kind()(0, _room_words(words, CONSUMED_AT), window_bytes)
        self._memory = memory
        self._slots = memory_at(slots, SLOTS_BYTES)
        self._num_free = self._next = 0

    @property
    def reader_rests(self) -> bool:
        """Whether the reader is to be told of the next slot, so that a message is sent in any case. Any thread."""
        return self._end.other_rests

    def has_room(self) -> bool:
        """Whether there is a free slot."""
        if not self._num_free:
            self._num_free = checked(self._end.beyond(NUM_SLOTS))
        return self._num_free > 0

    def put(self, slot: tuple[int, int, int, int, int, bytes], target: int = 0, source: int = 0) -> bool:
        """Fill the next slot as a ``Slot``; there must be room for it. True: the reader is to be told.

        The payload is copied between two addresses, unless it is in its place already.
        """
        seq, key, offset, size_bytes, piece, meta = slot
        at = self._next * SLOT_BYTES
        SLOT.pack_into(self._slots, at, seq, key, offset, size_bytes, piece, len(meta), meta)
        self._next = (self._next + 1) % NUM_SLOTS
        self._num_free -= 1
        return self._end.put(target, source, size_bytes if source else 0)

    def take_released(self) -> int:
        """Return how many pieces the reader has released since the last call."""
        return _taken(self._room)

    def take_consumed(self) -> int:
        """Return how many bytes have left the window since the last call."""
        return _taken(self._window)

    def rest(self) -> bool:
        """Wait to be told that more was released or consumed. False: there is something."""
        if not self._room.rest():
            return False
        if self._window.beyond(0):
            self._room.wake()
            return False
        return True


class SlotReader:
    """The reader's end: the addresses of the words and of the slots. One thread at a time.

    ``memory`` keeps them mapped.
    """

    def __init__(self, words: int, slots: int, memory: object) -> None:
        self._end: SlotEnd = _kind()(slots, reader_words(words), NUM_SLOTS)
        self._released: SlotEnd = _kind()(0, _freed_words(words, RELEASED_AT), 0)
        self._consumed: SlotEnd = _kind()(0, _freed_words(words, CONSUMED_AT), 0)
        self._memory = memory
        self._slots = memory_at(slots, SLOTS_BYTES)
        self._num_there = self._next = 0
        self._first: Slot | None = None

    def __len__(self) -> int:
        """How many slots are to be taken. Any thread."""
        return min(self._end.beyond(0), NUM_SLOTS)

    @property
    def has_some(self) -> bool:
        """Whether slots are to be taken, or there is nonsense. Any thread."""
        return self._num_there > 0 or self._end.beyond(0) > 0

    def first(self) -> Slot | None:
        """Return the first slot that was not taken; None if there is none. Raises ProtocolError for nonsense."""
        if not self._num_there:
            self._num_there = checked(self._end.beyond(0))
        if self._first is None and self._num_there:
            seq, key, offset, size, piece, meta_bytes, meta = SLOT.unpack_from(self._slots, self._next * SLOT_BYTES)
            if meta_bytes > MAX_META_BYTES:
                raise ProtocolError(f"a slot with {meta_bytes} bytes of meta, at most {MAX_META_BYTES} fit")
            # The constructor of its own takes twice as long.
            self._first = tuple.__new__(Slot, (seq, key, offset, size, piece, meta[:meta_bytes]))
        return self._first

    def take(self, target: int | None = None, source: int = 0) -> None:
        """Take the first slot; copy its payload between two addresses, or let it lie."""
        assert self._first is not None
        size_bytes, self._first = self._first.size_bytes, None
        self._next = (self._next + 1) % NUM_SLOTS
        self._num_there -= 1
        self._end.take(target, source, size_bytes)

    def release(self, num_pieces: int) -> None:
        """Count pieces that were read."""
        self._released.free(num_pieces, asks=False)

    def has_released(self) -> bool:
        """Whether the writer is to be told of what was released."""
        return self._released.free(0, asks=True)

    def consume(self, size_bytes: int) -> bool:
        """Count bytes that have left the window. True: the writer is to be told."""
        return self._consumed.free(size_bytes, asks=True)

    def rest(self) -> bool:
        """Stop looking until the writer tells that there is something. False: there is.

        One who rests already and was told rests anew.
        """
        return self._end.rest()

    @property
    def rests(self) -> bool:
        """Whether ``rest`` was the last word, so that the writer may send a frame instead of a slot. Any thread."""
        return self._end.rests

    def wake(self) -> None:
        """Look from now on, so that the writer tells nothing."""
        self._end.wake()

    @property
    def interruptions(self) -> int:
        """Return how often it was interrupted, for ``look``."""
        return self._end.interruptions

    def look(self, fd: int, spin_s: float, seen: int) -> bool:
        """Return whether there is a slot, once there is one or after so long. Any thread.

        Sooner, if there is something to read from a socket, or it was interrupted since it had been ``seen`` so often.
        """
        return self._end.look(fd, spin_s, seen)

    def interrupt(self) -> None:
        """End a ``look`` of another thread: what comes may have come elsewhere."""
        self._end.interrupt()


def _taken(end: SlotEnd) -> int:
    count = checked(end.beyond(0))
    if count:
        end.advance(count)
    return count


def _kind() -> type[NativeSlots | PythonSlots]:
    return NativeSlots if native.core is not None else PythonSlots
