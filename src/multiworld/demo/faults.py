"""The faults that the main job injects, and when. Pure: a seed in, a plan out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

MIN_CALM_S = 0.6
"""Load at full strength before each fault and after the last, so that each effect can be told apart."""
SIGNALS = {"kill": "SIGKILL", "freeze": "SIGSTOP"}


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """Do this to a replica of a stage, ``at_s`` after the load began or later; ``draw``, from 0 to 1, picks which."""

    kind: str
    stage: str
    at_s: float
    draw: float

    @property
    def freezes(self) -> bool:
        return self.kind == "freeze"

    def name(self, victim: str = "") -> str:
        """Return what people call it; ``victim``: the replica, once it has been picked."""
        return f"{SIGNALS[self.kind]} of {victim or f'a replica of {self.stage}'}"

    def pick(self, replicas: Sequence[str]) -> str:
        """Return one of these."""
        return replicas[int(self.draw * len(replicas))]


def plan_faults(*, seconds: float, seed: int) -> tuple[PlannedFault, ...]:
    """Kill two replicas of b, freeze another, kill the only one of a or c; the seed varies order, moment and victim.

    The load begins a share before the first fault, and goes on for two after the last: it may take one to be noticed.
    """
    draws = random.Random(seed)
    faults = [("kill", "b"), ("kill", "b"), ("freeze", "b"), ("kill", draws.choice("ac"))]
    draws.shuffle(faults)
    share = seconds / (len(faults) + 2)
    return tuple(
        PlannedFault(kind=kind, stage=stage, at_s=share * (index + draws.uniform(-0.2, 0.2)), draw=draws.random())
        for index, (kind, stage) in enumerate(faults, start=1)
    )
