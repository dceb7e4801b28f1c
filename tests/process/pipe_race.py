"""A program: two processes move single bytes through a pipe, and each rests in the moment when the other acts.

One that looks before its own word can be seen, as processors do unless they are told not to, sleeps for ever.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import sys
import time
from collections.abc import Callable

from multiworld.channel.shared_memory.pipe import PAGE_BYTES, WINDOW_BYTES, reader_words, writer_words
from multiworld.testing import scaled
from tests.unit.channel.shared_memory.pipes import ENDS, Ends

BELLS_AT, OVER_AT = 1024, 1152  # in the page, behind the words of the pipe
SECONDS = 0.7


class Race:
    """A pipe in memory that a child shares, and a word that counts the bells of the reader."""

    def __init__(self, ends: Ends) -> None:
        self._memory = mmap.mmap(-1, PAGE_BYTES + WINDOW_BYTES)
        page = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.writer = ends[0](page + PAGE_BYTES, writer_words(page), WINDOW_BYTES)
        self.reader = ends[1](page + PAGE_BYTES, reader_words(page), WINDOW_BYTES)
        self.bells, self.over = (ctypes.c_uint64.from_address(page + at) for at in (BELLS_AT, OVER_AT))

    def write(self) -> None:
        source = ctypes.create_string_buffer(1)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            wait_a_moment()
            self.writer.push(ctypes.addressof(source), 1, 0.0)
            if self.writer.bell:
                self.bells.value += 1
            spin(self.writer.is_level, "the byte was not read")
        self.over.value = 1

    def read(self) -> None:
        num_heard = num_rests = 0
        while not self.over.value:
            self.reader.pull(None, 1, 0.0, past_caches=False, not_yet=False)
            wait_a_moment()
            if self.reader.rest_reading(early=False, end=0):
                num_rests += 1
                spin(lambda heard=num_heard: self.bells.value > heard or self.over.value, "nobody has rung")  # type: ignore[misc]
                num_heard = self.bells.value
                self.reader.wake()
        print(f"rested {num_rests} times", flush=True)


def wait_a_moment() -> None:
    """For up to a microsecond, so that a rest often meets a write."""
    for _ in range(int(random.random() * 40)):
        pass


def spin(condition: Callable[[], object], complaint: str) -> None:
    until = time.monotonic() + scaled(5)
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(complaint)


def run(ends: Ends) -> None:
    race = Race(ends)
    pid = os.fork()
    if pid == 0:
        race.read()
        os._exit(0)
    try:
        race.write()
    finally:
        race.over.value = 1
        _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"the reader ended with {status}")


if __name__ == "__main__":
    for ends in ENDS:
        print(*(end.__name__ for end in ends), flush=True)
        run(ends)
    sys.exit()
