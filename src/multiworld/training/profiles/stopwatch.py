"""Reads how long this thread needed for something, without the time in which others had its processor."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..health.run_queue import RunQueue

SHORTER = 0.97
"""A time that is at most so much of the shortest one before counts as shorter."""


@dataclass(frozen=True)
class Reading:
    """``wall_s``: a clock. ``waited_s``: in which this thread could run, and had no processor. ``computed_s``: on one.

    The order in which a reading takes these three is that of the fields.
    """

    waited_s: float
    wall_s: float
    computed_s: float

    def since(self, before: Reading) -> float:
        """Return the seconds that were needed: those of the clock without those in which the thread had no processor.

        A layer may sleep, or wait for a device or for other threads that compute: all this counts, so the time on a
        processor alone would be too little. It is the least that was needed: a wait which ends between the two clocks
        is not taken off twice.
        """
        needed_s = self.wall_s - before.wall_s - (self.waited_s - before.waited_s)
        return max(needed_s, self.computed_s - before.computed_s)


class Stopwatch:
    """Of the thread that makes it.

    The kernel tells how long this thread was ready to run and did not (Linux; elsewhere the clock's time counts whole).
    What the kernel does not tell stays in the time: waits of other threads that a layer computes with, and what
    another load takes of caches, memory and of the other half of a core. So the shortest of several times counts.
    """

    def __init__(self) -> None:
        self._run_queue = RunQueue()

    def now(self) -> Reading:
        return Reading(self._run_queue(), time.perf_counter(), time.thread_time())

    def close(self) -> None:
        self._run_queue.close()


class Shortest:
    """The shortest of several times, for each of some quantities."""

    def __init__(self, num_quantities: int) -> None:
        self.times_s = [math.inf] * num_quantities
        self.in_vain = 0
        """How many times in a row nothing was shorter."""

    def take(self, times_s: Sequence[float]) -> None:
        is_shorter = any(new < SHORTER * old for new, old in zip(times_s, self.times_s, strict=True))
        self.in_vain = 0 if is_shorter else self.in_vain + 1
        self.times_s = [min(pair) for pair in zip(times_s, self.times_s, strict=True)]
