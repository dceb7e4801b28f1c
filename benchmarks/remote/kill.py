"""The scenario in which one of four nodes is killed, and the other three go on."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping

from .system import START_S, System

__all__ = ["kill"]

NUM_NODES, VICTIM = 4, 1
SURVIVORS = [node for node in range(NUM_NODES) if node != VICTIM]
RECOVERY_S = 1.0


class Survivors:
    """Nodes that add all the time, and how much they have been asked to add."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._issued = dict.fromkeys(SURVIVORS, 0)
        self._chunk = max(1, system.burst // 10)

    def rate_until(self, moment: float) -> float:
        """Drive all of them until then, and return how many additions they made in a second."""
        began = now = time.perf_counter()
        done = 0
        while now < moment:
            for node in SURVIVORS:
                self._system.add(node, self._chunk)
                self._issued[node] += self._chunk
            self.wait(START_S)
            done += self._chunk * len(SURVIVORS)
            now = time.perf_counter()
        return done / (now - began) if done else math.nan

    def wait(self, timeout_s: float) -> int:
        """Fetch the sum of each, and return how many sums are wrong. Raises if one is not there in time."""
        return sum(self._system.value(node, timeout_s) != issued for node, issued in self._issued.items())


def kill(system: System, options: Mapping[str, float]) -> dict[str, float]:
    """Kill one node and wait for the error, at most ``limit_s``: one that has not come by then counts as that long.

    ``answered_s``: from the error until each of the others has answered; NaN if one does not within ``limit_s``.
    ``throughput``: that of the others from one second after the kill on, over that before; 0 if they do not answer.
    """
    seconds, limit_s = options["seconds"], options["limit_s"]
    survivors = Survivors(system)
    system.add(VICTIM, system.burst)
    system.value(VICTIM, START_S)
    survivors.rate_until(time.perf_counter() + seconds / 2)  # warms up
    before = survivors.rate_until(time.perf_counter() + seconds)
    pid = system.pid(VICTIM)
    killed = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    error_s = _until_error(system, killed, limit_s)
    asked = time.perf_counter()
    found = {"error_s": error_s, "answered_s": math.nan, "wrong": math.nan, "throughput": 0.0}
    try:
        found["wrong"] = survivors.wait(limit_s / len(SURVIVORS))
        found["answered_s"] = time.perf_counter() - asked
        survivors.rate_until(killed + RECOVERY_S)
        after = survivors.rate_until(max(time.perf_counter(), killed + RECOVERY_S) + seconds)
        found |= {"throughput": after / before, "wrong": survivors.wait(START_S)}
    except Exception as error:
        print(f"the others do not go on: {type(error).__name__}: {error}", flush=True)
    noticed_s = system.noticed_s() - killed
    return found if math.isnan(noticed_s) else {**found, "noticed_s": noticed_s}


def _until_error(system: System, killed: float, limit_s: float) -> float:
    try:
        system.add(VICTIM, 1)
        value = system.value(VICTIM, limit_s)
    except system.deaths as error:
        took_s = time.perf_counter() - killed
        print(f"after {took_s:.3f} s: {type(error).__name__}: {error}", flush=True)
        return min(took_s, limit_s)
    raise AssertionError(f"a dead node answered {value}")
