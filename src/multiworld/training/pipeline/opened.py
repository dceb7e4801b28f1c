"""A model that is ready to be trained in pipelines, and its engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ..data.base import StepLoader
from ..engine.observers import RecoveryObserver, StepObserver
from ..engine.trainer import Trainer
from ..health.timing import StepTimer, step_timer
from ..options import TrainingOptions
from ..planning.scheduling import may_split
from ..planning.templates import Templates
from ..recovery.records import Generation
from ..recovery.team import Team
from ..state import TrainingState
from .experience import Experience
from .foresight import Foresight
from .making import make_pipelined_trainer
from .model import Loss
from .parts import PipelinedParts
from .planner import Planner
from .remembering import Remembering


@dataclass(frozen=True)
class Opened:
    """A model that was cut, measured and planned."""

    parts: PipelinedParts
    templates: Templates
    loss: Loss
    foresight: Foresight

    def close(self) -> None:
        """Idempotent."""
        self.foresight.close()

    def _timer(self) -> StepTimer:
        """On a CPU without the run queue: reading it takes a good part of a small layer's time, twice an operation."""
        device = self.parts.device
        return StepTimer() if device.type == "cpu" else step_timer(device)

    def make_trainer(
        self,
        team: Team,
        state: TrainingState,
        loader: StepLoader,
        observer: StepObserver,
        recoveries: RecoveryObserver,
        options: TrainingOptions,
        num_nodes: int,
    ) -> Trainer:
        """Raises TypeError that names a part of the state which cannot be sent to others."""
        state.apart = self.parts.holdings
        state.add("optimizers", self.parts.holdings.optimizers)
        experience = Experience(now=time.monotonic())
        membership = team.membership
        planner = Planner(
            self.templates,
            tolerate=options.tolerate,
            num_micro_batches=loader.num_micro_batches,
            experience=experience,
            foresight=self.foresight,
            together=self.parts.holdings.contents.together,
            split_backward=may_split(self.parts.schedule, self.templates.profile),
        )
        planner.check(num_nodes)
        recoveries = Remembering(experience, recoveries, lambda now: planner.foresee(now, membership.member.id))
        trainer = make_pipelined_trainer(team, state, self.parts, self.loss, loader, observer, recoveries, options)
        trainer.services.timer = self._timer()

        def complete(generation: Generation, before: Generation | None) -> Generation:
            began = time.monotonic()
            is_last = membership.limit is not None and generation.step >= membership.limit
            planned = planner.complete(generation, before, may_prefetch=not is_last)
            recoveries.recovery_phase("plan", generation.step, time.monotonic() - began)
            return planned

        membership.complete = complete
        least = max(membership.rules.min_members, self.templates.smallest)
        membership.rules = replace(membership.rules, min_members=least)
        return trainer
