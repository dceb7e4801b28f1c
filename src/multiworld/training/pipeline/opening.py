"""Cut, measure and plan a model that a program hands over to be trained in pipelines, and make its engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ...model.layers import LayeredModel, layers_by_hand, layers_of
from ..data.base import StepLoader
from ..engine.observers import RecoveryObserver, StepObserver
from ..engine.trainer import Trainer
from ..options import TrainingOptions
from ..planning.nodes import Node
from ..planning.profile import LayerCost, Profile
from ..planning.templates import Templates, make_templates
from ..recovery.team import Team
from ..state import TrainingState
from .making import make_pipelined_trainer
from .model import Loss
from .parts import PipelinedParts
from .planner import Planner
from .statistics import changing


@dataclass(frozen=True)
class Opened:
    """A model that was cut, measured and planned."""

    parts: PipelinedParts
    templates: Templates
    loss: Loss

    def make_trainer(
        self,
        team: Team,
        state: TrainingState,
        loader: StepLoader,
        observer: StepObserver,
        recoveries: RecoveryObserver,
        options: TrainingOptions,
    ) -> Trainer:
        """Raises TypeError that names a part of the state which cannot be sent to others."""
        state.apart = self.parts.holdings
        trainer = make_pipelined_trainer(team, state, self.parts, self.loss, loader, observer, recoveries, options)
        planner = Planner(self.templates, tolerate=options.tolerate, num_micro_batches=loader.num_micro_batches)
        membership = team.membership
        membership.complete = planner.complete
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
) -> Opened:
    """See ``Job.pipeline``. Raises CutError, PlanError, TypeError, ValueError for options that do not go with it."""
    check_pipeline(options)
    layers = layered(model, stages, example)
    templates = templates_for(
        layers, example, num_nodes=num_nodes, tolerate=options.tolerate, memory_bytes=memory_bytes
    )
    return Opened(PipelinedParts(layers, changing(layers, example), exact=options.exact), templates, loss)


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
    model: LayeredModel, example: Any, *, num_nodes: int, tolerate: int, memory_bytes: int | None
) -> Templates:
    """Measure the layers, and make templates for up to so many nodes. Raises PlanError."""
    layers = tuple(
        LayerCost(
            name=each.name,
            forward_s=1.0,
            backward_s=2.0,
            state_bytes=sum(p.nbytes for p in each.parameters.values()) * 4,
        )
        for each in model.layers
    )
    profile = Profile(model=model.name, micro_batch=1, layers=layers)
    return make_templates(profile, Node(memory_bytes=memory_bytes), num_nodes=num_nodes, tolerate=tolerate)
