"""Pipes whose two ends are in this process, with guarded memory around the window."""

from __future__ import annotations

import ctypes
import itertools
import random
from typing import TypeAlias

import pytest

from multiworld import native
from multiworld.channel.shared_memory import pipe, pipe_payloads
from multiworld.channel.shared_memory.pipe import PAGE_BYTES, NativeEnd, PythonEnd, reader_words, writer_words

WINDOW, CHUNK, TURN = 4096, 256, 8192  # of small pipes; a window divides 2**64
GUARD = b"\xa5" * 128
NEAR_THE_END = 2**64 - WINDOW - 321

End: TypeAlias = NativeEnd | PythonEnd
Ends: TypeAlias = tuple[type[End], type[End]]
KINDS: tuple[type[End], ...] = (PythonEnd,) if native.core is None else (NativeEnd, PythonEnd)
ENDS: list[Ends] = list(itertools.product(KINDS, KINDS))
"""The kinds of writers and readers, which must understand each other."""


def make_small(patches: pytest.MonkeyPatch) -> None:
    """Let pipes from now on have small windows, chunks and turns, spin for no time, and have all of it."""
    patches.setattr(pipe, "WINDOW_BYTES", WINDOW)
    patches.setattr(pipe, "NATIVE_CHUNK_BYTES", CHUNK)
    patches.setattr(pipe, "PYTHON_CHUNK_BYTES", CHUNK)
    patches.setattr(pipe_payloads, "WINDOW_BYTES", WINDOW)
    patches.setattr(pipe_payloads, "TURN_BYTES", TURN)
    patches.setattr(pipe_payloads, "BLOCKED_TURN_BYTES", 4 * TURN)
    patches.setattr(pipe_payloads, "MIN_PUSH_BYTES", CHUNK)
    patches.setattr(pipe_payloads, "PAST_CACHES_BYTES", WINDOW)
    patches.setattr(pipe_payloads, "MAX_SPIN_S", 0.0)
    patches.setattr(pipe_payloads, "MIN_SPIN_S", 0.0)
    patches.setattr(pipe_payloads, "TURN_S", 1000.0)
    patches.setattr(pipe_payloads, "BLOCKED_TURN_S", 1000.0)
    patches.setattr(pipe, "LIMIT_S", 1000.0)


class Memory:
    """Some memory between two guards. ``skew``: how far it begins behind an address that 64 divides."""

    def __init__(self, content: bytes, *, skew: int = 0) -> None:
        self._buffer = ctypes.create_string_buffer(len(GUARD) + 128 + len(content) + len(GUARD))
        begin = ctypes.addressof(self._buffer) + len(GUARD)
        self.address, self.size_bytes = begin + (-begin % 64) + skew, len(content)
        ctypes.memmove(self.address - len(GUARD), GUARD + content + GUARD, len(content) + 2 * len(GUARD))

    @property
    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.size_bytes)

    @property
    def view(self) -> memoryview:
        return memoryview((ctypes.c_char * self.size_bytes).from_address(self.address)).cast("B")

    def check_guards(self) -> None:
        before = ctypes.string_at(self.address - len(GUARD), len(GUARD))
        behind = ctypes.string_at(self.address + self.size_bytes, len(GUARD))
        assert before == behind == GUARD, "something was written beside it"


class Pipe:
    """Both ends of one pipe. ``start``: how many bytes have gone through it, modulo 2**64."""

    def __init__(self, ends: Ends, *, start: int = 0) -> None:
        self.page, self.window = Memory(bytes(PAGE_BYTES)), Memory(bytes(pipe.WINDOW_BYTES))
        page, window = self.page.address, self.window.address
        words = writer_words(page)
        self.written, self.taken, self.writer_rests, self.reader_rests = map(ctypes.c_uint64.from_address, words)
        self.written.value = self.taken.value = start
        size = pipe.WINDOW_BYTES
        self.writer, self.reader = ends[0](window, words, size), ends[1](window, reader_words(page), size)
        for end in (self.writer, self.reader):
            if isinstance(end, NativeEnd):
                end._end.position = start
            else:
                end.position = start

    def push(self, data: bytes, *, skew: int = 0, spin_s: float = 0.0) -> int:
        """Push what there is room for, from memory that begins anywhere."""
        source = Memory(data, skew=skew)
        moved = self.writer.push(source.address, len(data), spin_s)
        assert source.content == data
        return moved

    def pull(
        self, size_bytes: int, *, skew: int = 0, past_caches: bool = False, not_yet: bool = False, spin_s: float = 0.0
    ) -> bytes:
        """Pull what there is, at most so much; nothing else is written."""
        untouched = noise(size_bytes, seed=size_bytes)
        target = Memory(untouched, skew=skew)
        moved = self.reader.pull(target.address, size_bytes, spin_s, past_caches=past_caches, not_yet=not_yet)
        target.check_guards()
        assert target.content[moved:] == untouched[moved:]
        return target.content[:moved]

    def skip(self, size_bytes: int, *, not_yet: bool = False) -> int:
        return self.reader.pull(None, size_bytes, 0.0, past_caches=False, not_yet=not_yet)

    def check_guards(self) -> None:
        self.page.check_guards()
        self.window.check_guards()


def noise(size_bytes: int, *, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)
