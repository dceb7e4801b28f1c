"""The faults that the main job injects, and when. Pure: a seed in, a plan out."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["MIN_CALM_S", "PlannedFault", "plan_faults"]

MIN_CALM_S = 0.6
"""Load at full strength before each fault and after the last, so that each effect can be told apart."""


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """Do this to whichever process is that replica, ``at_s`` after the load began or later."""

    kind: str
    replica: str
    at_s: float

    @property
    def name(self) -> str:
        """What people call it."""
        return {"kill": f"SIGKILL of {self.replica}", "freeze": f"SIGSTOP of {self.replica}"}[self.kind]


def plan_faults(*, seconds: float, seed: int) -> tuple[PlannedFault, ...]:
    """Kill both replicas one after the other, then freeze the replacement of the second; moments vary with the seed."""
    jitter = random.Random(seed)
    kinds = (("kill", "b1"), ("kill", "b2"), ("freeze", "b2"))
    share = seconds / (len(kinds) + 2)  # one share before the first fault, two after the last was injected
    return tuple(
        PlannedFault(kind=kind, replica=replica, at_s=share * (index + jitter.uniform(-0.2, 0.2)))
        for index, (kind, replica) in enumerate(kinds, start=1)
    )
