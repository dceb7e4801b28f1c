"""Which replica is killed in which step. Pure: a seed in, a plan out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .options import TrainingDemoOptions


@dataclass(frozen=True, kw_only=True)
class PlannedKill:
    """Kill a replica in the step after ``step``; ``draw``, from 0 to 1, picks which of those that are there.

    ``moment``, from 0 to 1: after which part of a step's usual time.
    """

    step: int
    draw: float
    moment: float

    def pick(self, ranks: Sequence[int]) -> int:
        return ranks[int(self.draw * len(ranks))]


def plan_kills(options: TrainingDemoOptions) -> list[PlannedKill]:
    """Return one kill in each equal share of the first half of the steps, in order."""
    draws = random.Random(options.seed)
    if not options.kills:
        return []
    share = 0.5 * options.steps / options.kills
    return [
        PlannedKill(step=int(share * (number + draws.uniform(0.3, 0.7))), draw=draws.random(), moment=draws.random())
        for number in range(options.kills)
    ]
