"""Slots whose two ends are in this process, with guarded memory around them."""

from __future__ import annotations

import ctypes
import itertools
from typing import TypeAlias

import pytest

from multiworld import native
from multiworld.channel.shared_memory import slots
from multiworld.channel.shared_memory.pipe import PAGE_BYTES, reader_words, writer_words
from multiworld.channel.shared_memory.slots import (
    CONSUMED_AT,
    RELEASED_AT,
    RESTS_FOR_ROOM_AT,
    SLOTS_BYTES,
    WORDS_AT,
    NativeSlots,
    PythonSlots,
    SlotReader,
    SlotWriter,
)
from tests.unit.channel.shared_memory.pipes import Memory

MAX_PIECES, WINDOW_BYTES = 1000, 100_000

Kind: TypeAlias = type[NativeSlots | PythonSlots]
Ends: TypeAlias = tuple[Kind, Kind]
KINDS: tuple[Kind, ...] = (PythonSlots,) if native.core is None else (NativeSlots, PythonSlots)
ENDS: list[Ends] = list(itertools.product(KINDS, KINDS))
"""The kinds of writers and readers, which must understand each other."""


class Slots:
    """Both ends of the slots of one way. ``start``: what each has counted already, modulo 2**64."""

    def __init__(self, ends: Ends, *, start: int = 0) -> None:
        self._page, self._slots = Memory(bytes(PAGE_BYTES)), Memory(bytes(SLOTS_BYTES))
        words, at = self._page.address + WORDS_AT, self._slots.address
        self.written, self.taken, _, self.reader_rests = map(ctypes.c_uint64.from_address, writer_words(words))
        self.released, self.consumed, self.writer_rests = (
            ctypes.c_uint64.from_address(words + word) for word in (RELEASED_AT, CONSUMED_AT, RESTS_FOR_ROOM_AT)
        )
        for count in (self.written, self.taken, self.released, self.consumed):
            count.value = start
        assert reader_words(words)[1] == ctypes.addressof(self.written)
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(slots, "_kind", lambda: ends[0])
            self.writer = SlotWriter(words, at, self, max_pieces=MAX_PIECES, window_bytes=WINDOW_BYTES)
            patches.setattr(slots, "_kind", lambda: ends[1])
            self.reader = SlotReader(words, at, self)
        for end in (
            self.writer._end, self.writer._room, self.writer._window,
            self.reader._end, self.reader._released, self.reader._consumed,
        ):  # fmt: skip
            if isinstance(end, NativeSlots):
                end._end.position = start
            else:
                assert isinstance(end, PythonSlots)
                end.position = start

    def slot(self, number: int) -> ctypes.Array[ctypes.c_char]:
        """Return the memory of a slot."""
        return (ctypes.c_char * slots.SLOT_BYTES).from_address(self._slots.address + number * slots.SLOT_BYTES)

    def put(self, seq: int, meta: bytes = b"") -> bool:
        """Tell of a message of which only the number matters."""
        return self.writer.put((seq, 0, 0, 1, seq, meta))

    def take(self) -> int | None:
        """Take a slot, and return the number of its message."""
        slot = self.reader.first()
        if slot is None:
            return None
        self.reader.take()
        return slot.seq

    def check_guards(self) -> None:
        """Nothing beside the words and the slots was written: the pipe's words are in the same page."""
        self._page.check_guards()
        self._slots.check_guards()
        assert self._page.content[:WORDS_AT] == bytes(WORDS_AT)
