"""Cut, measure and plan a model that a program hands over to be trained in pipelines, and make its engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...model.layers import LayeredModel, layers_by_hand, layers_of
from ..data.base import StepLoader
from ..engine.observers import RecoveryObserver, StepObserver
from ..engine.trainer import Trainer
from ..health.timing import StepTimer, step_timer
from ..options import TrainingOptions
from ..planning.nodes import Node
from ..planning.templates import Templates, make_templates
from ..profiles.cache import cached_profile
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
from .statistics import changing


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
        device = next(iter(self.parts.model.parameters().values())).device
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
        state.add("optimizers", self.parts.holdings)
        experience = Experience(now=time.monotonic())
        membership = team.membership
        planner = Planner(
            self.templates,
            tolerate=options.tolerate,
            num_micro_batches=loader.num_micro_batches,
            experience=experience,
            foresight=self.foresight,
        )
        planner.check(num_nodes)
        recoveries = Remembering(experience, recoveries, lambda now: planner.foresee(now, membership.member.id))
        trainer = make_pipelined_trainer(team, state, self.parts, self.loss, loader, observer, recoveries, options)
        trainer.services.timer = self._timer()

        def complete(generation: Generation, before: Generation | None) -> Generation:
            began = time.monotonic()
            planned = planner.complete(generation, before)
            recoveries.recovery_phase("plan", generation.step, time.monotonic() - began)
            return planned

        membership.complete = complete
        least = max(membership.rules.min_members, self.templates.smallest)
        membership.rules = replace(membership.rules, min_members=least)
        return trainer


def open_pipeline(
    model: nn.Module | None,
    stages: Sequence[nn.Module] | None,
    example: Any,
    loss: Loss,
    options: TrainingOptions,
    *,
    num_nodes: int,
    memory_bytes: int | None,
    is_replacement: bool,
) -> Opened:
    """See ``Job.pipeline``. Raises CutError, PlanError, TypeError, ValueError for options that do not go with it.

    ``is_replacement``: see ``templates_for``.
    """
    check_pipeline(options)
    layers = layered(model, stages, example)
    templates = templates_for(
        layers,
        example,
        loss,
        num_nodes=num_nodes,
        tolerate=options.tolerate,
        memory_bytes=memory_bytes,
        is_replacement=is_replacement,
    )
    return Opened(PipelinedParts(layers, changing(layers, example), exact=options.exact), templates, loss, Foresight())


def check_pipeline(options: TrainingOptions) -> None:
    """Raises ValueError for an option of ``join`` that does not go with pipelines."""
    wrong = {
        "replica_size": options.replica_size != 1,
        "batch": options.batch != "constant",
        "replay": options.replay is not None,
        'on_bad_step="rollback"': options.on_bad_step == "rollback",
        "checkpoint.copies": options.checkpoint is not None and options.checkpoint.copies > 0,
    }
    for name, is_given in wrong.items():
        if is_given:
            raise ValueError(f"training.join({name}=...) does not go with job.pipeline()")


def layered(model: nn.Module | None, stages: Sequence[nn.Module] | None, example: Any) -> LayeredModel:
    """Return the layers of a model, or of stages that the user gives. Raises CutError, TypeError."""
    if (model is None) == (stages is None):
        raise TypeError("job.pipeline() takes a model, or stages=[...]: one of them")
    if stages is not None:
        return layers_by_hand(stages, example)
    assert model is not None
    return layers_of(model, example)


def templates_for(
    model: LayeredModel,
    example: Any,
    loss: Loss,
    *,
    num_nodes: int,
    tolerate: int,
    memory_bytes: int | None,
    is_replacement: bool = False,
) -> Templates:
    """Measure the layers, or take what was measured before, and make templates for up to so many nodes.

    ``is_replacement``: a training waits for this process, so it measures nothing that was measured before. Members
    may come to other templates than each other: the proposer's are in the record of each generation. Raises PlanError.
    """
    profile = cached_profile(model, example, loss=loss, again=not is_replacement)
    node = Node(memory_bytes=memory_bytes or device_memory(model.inputs_of(example)[0].device))
    return make_templates(profile, node, num_nodes=num_nodes, tolerate=tolerate)


def device_memory(device: torch.device) -> int | None:
    """Return how much of a device's memory a stage may use: nine tenths; None of the CPU, as its memory is shared."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory * 0.9)
