"""How much slower Python is that has just slept: what a machine takes from each hop of a request that comes seldom.

While a processor idles its caches may be switched off; on a virtual machine somebody else may have it meanwhile.
"""

from __future__ import annotations

import time
from statistics import median

__all__ = ["REST_S", "waking"]

REST_S = 0.005
NUM_OBJECTS = 400  # some 100 kB
TIMES = 200


class _Thing:
    def __init__(self, number: int) -> None:
        self.number, self.more = number, {"number": number}
        self.others = [number]


def waking() -> dict[str, float]:
    """Return how long the same piece of Python takes: ``woken_s`` after a sleep, ``awake_s`` at once again."""
    things = [_Thing(number) for number in range(NUM_OBJECTS)]
    woken: list[float] = []
    awake: list[float] = []
    for _ in range(TIMES):
        time.sleep(REST_S)
        for times in (woken, awake):
            began = time.perf_counter()
            _look_at(things)
            times.append(time.perf_counter() - began)
    return {"woken_s": median(woken), "awake_s": median(awake)}


def _look_at(things: list[_Thing]) -> int:
    return sum(thing.number + thing.more["number"] + thing.others[0] for thing in things)
