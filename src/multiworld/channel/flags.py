"""Ranks of one host that wait for each other in shared memory, each on a thread that has nothing better to do.

Each rank has a page of its own: how often it has come to a barrier of the present call, and the last call that it gave
up. It writes there, wakes whoever waits, and waits for each of the others. Waiting looks at the words for a moment
first (``wire.spinning``) and then sleeps in the kernel, but comes back now and then to see whether the call was
cancelled or the world has ended, which no peer would tell it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence

from ..wire import futex
from ..wire.spinning import SPIN_S, QuickWaits
from ..wire.waiting import run_in_thread

__all__ = ["PAGE_BYTES", "FlagBarrier", "FlagPage", "Waiter"]

PAGE_BYTES = 4096
SLICE_S = 0.005
MASK = 0xFFFFFFFF
SIGN = 0x80000000


class FlagPage:
    """One rank's words, in memory that ``owner`` keeps mapped. Counters wrap around at 32 bits."""

    def __init__(self, owner: object, address: int) -> None:
        self._owner = owner
        self._address = address
        self._came = ctypes.c_uint32.from_address(address)
        self._gave_up = ctypes.c_uint32.from_address(address + 64)

    def come(self, count: int) -> None:
        """Tell that this rank has come to barriers up to number ``count``."""
        self._came.value = count & MASK
        futex.wake(self._address)

    def give_up(self, seq: int) -> None:
        """Tell that this rank has given the call of that number up."""
        self._gave_up.value = seq & MASK
        futex.wake(self._address)

    def has_come(self, count: int) -> bool:
        return (self._came.value - count) & MASK < SIGN

    def has_given_up(self, seq: int) -> bool:
        return self._gave_up.value == seq & MASK

    def sleep(self, count: int) -> None:
        """Wait a while for it to come."""
        seen = self._came.value
        if (seen - count) & MASK >= SIGN:
            futex.wait(self._address, seen, SLICE_S)


class Waiter:
    """What a barrier needs to know of its call: its number, and the thread that made it and is blocked in it.

    ``check`` raises what ended the call; ``gave_up`` makes the error for a rank that gave it up.
    """

    def __init__(self, seq: int, thread: int, check: Callable[[], None], gave_up: Callable[[int], Exception]) -> None:
        self.seq, self.thread, self.check, self.gave_up = seq, thread, check, gave_up


class FlagBarrier:
    """Implements ``collectives.Barrier`` for one call; ``count`` is what all ranks agreed to count from."""

    def __init__(
        self, waiter: Waiter, own: FlagPage, others: Sequence[tuple[int, FlagPage]], quick_waits: QuickWaits, count: int
    ) -> None:
        self._waiter, self._own, self._others = waiter, own, others
        self._quick_waits = quick_waits
        self.count = count

    async def meet(self) -> None:
        self.count += 1
        self._own.come(self.count)
        if self._waiter.thread == threading.get_ident():
            self._wait()
        else:  # the call goes on where it must not block
            await run_in_thread(self._wait, "multiworld-barrier")

    def _wait(self) -> None:
        for rank, page in self._others:
            if not page.has_come(self.count):
                self._wait_for(rank, page)

    def _wait_for(self, rank: int, page: FlagPage) -> None:
        began = time.perf_counter()
        if self._quick_waits.pay:
            while not page.has_come(self.count) and time.perf_counter() - began < SPIN_S:
                os.sched_yield()  # to the peer, if it needs this core
        while not page.has_come(self.count):
            if page.has_given_up(self._waiter.seq):
                raise self._waiter.gave_up(rank)
            self._waiter.check()
            page.sleep(self.count)
        self._quick_waits.waited(time.perf_counter() - began)
