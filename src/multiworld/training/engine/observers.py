"""Who hears of the engine's steps and recoveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...errors import WorldBrokenError
from ..recovery.records import Generation
from .decision import Outcome
from .facts import Facts
from .step import Step


class RecoveryObserver(Protocol):
    """Hears of members that are lost and come; see ``events``. Called on the training thread; must be quick."""

    def recovery_began(self, step: int, error: WorldBrokenError | None) -> None: ...

    def recovery_phase(self, name: str, step: int, took_s: float) -> None: ...

    def generation_began(self, before: Generation | None, now: Generation, step: int) -> None: ...

    def state_received(self, step: int, size_bytes: int, sources: int, took_s: float) -> None: ...


class StepObserver(Protocol):
    """Hears of steps. Called on the training thread; must be quick."""

    def step_committed(self, step: Step, generation: Generation, facts: Sequence[Facts], outcome: Outcome) -> None:
        """All members have complete gradients; the optimizers have not run yet."""

    def step_applied(self, step: Step) -> None:
        """The step's block has ended: the state is that of the next step."""
