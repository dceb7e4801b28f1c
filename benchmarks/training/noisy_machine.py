"""What ranks need in a step on machines that vary: a simulated one, and one whose times were recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from multiworld.training.health.step_times import Own

__all__ = ["TWICE_AS_SLOW", "NoisyMachine", "RecordedMachine"]

USUAL_S: Final = {"data": 0.005, "forward": 0.015, "backward": 0.025, "optimizer": 0.005}
TWICE_AS_SLOW: Final[Mapping[str, Mapping[str, float]]] = {"data": {"data": 11.0}, "backward": {"backward": 3.0}}
"""By how much a part has to grow for the whole of ``USUAL_S`` to double."""
RECORDED: Final = Path(__file__).with_name("eight_ranks_on_two_cores.txt")
PARTS: Final = ("data", "forward", "backward", "optimizer", "cpu wait")
_UNIT_S: Final = 1e-5


class NoisyMachine:
    """Steps of ``num`` members. Each part varies log-normally by ``sigma``, all together by 0.4, and one part in
    twenty stalls for a time without a mean (Pareto). In ``bursts`` other work halves a core for up to five steps.
    """

    def __init__(self, num: int, seed: int, *, sigma: float, bursts: float = 0.0) -> None:
        self._num, self._random, self._sigma, self._bursts = num, random.Random(seed), sigma, bursts
        self._shared: dict[int, int] = {}

    def step(self, slow: int = -1, **factors: float) -> dict[str, Own]:
        together = math.exp(self._random.gauss(0, 0.4))
        return {str(rank): self._own(rank, together, factors if rank == slow else {}) for rank in range(self._num)}

    def _own(self, rank: int, together: float, factors: Mapping[str, float]) -> Own:
        num_micro_batches = self._random.choice((2, 3))
        if self._random.random() < self._bursts:
            self._shared.setdefault(rank, self._random.randint(1, 5))
        left = self._shared.pop(rank, 0)
        if left > 1:
            self._shared[rank] = left - 1
        seconds = {}
        for part, usual in USUAL_S.items():
            took = usual * together * math.exp(self._random.gauss(0, self._sigma)) * factors.get(part, 1.0)
            if self._random.random() < 0.05:
                took *= 1 + self._random.paretovariate(1.2)
            seconds[part] = took * (2.0 if left else 1.0) * (1 if part == "optimizer" else num_micro_batches)
        return Own(seconds, num_micro_batches)


class RecordedMachine:
    """The recorded steps from ``start`` on, around and around."""

    num, num_steps = 8, 220

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def step(self, slow: int = -1, part: str = "") -> dict[str, Own]:
        """``slow``: a rank that needs twice as long in this step, by ``part``."""
        recorded = _recorded()
        owns = recorded[self._next % len(recorded)]
        self._next += 1
        if slow < 0:
            return dict(owns)
        own = owns[str(slow)]
        whole = sum(took for each, took in own.seconds.items() if each != "cpu wait")
        return {**owns, str(slow): own._replace(seconds={**own.seconds, part: own.seconds[part] + whole})}


@cache
def _recorded() -> list[dict[str, Own]]:
    lines = [line for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
    return [
        {
            str(rank): Own(
                {part: int(text) * _UNIT_S for part, text in zip(PARTS, own.split(), strict=True)}, num_micro_batches=4
            )
            for rank, own in enumerate(line.split("; "))
        }
        for line in lines
    ]
