"""Cut, measure and plan a model that a program hands over to be trained in pipelines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...model.layers import LayeredModel, layers_by_hand, layers_of
from ..errors import ModelTooLargeError
from ..options import TrainingOptions
from ..planning.nodes import Node
from ..planning.scheduling import scheduled_templates, schedules_named
from ..planning.templates import Templates
from ..profiles.cache import cached_profile
from .foresight import Foresight
from .model import Loss
from .opened import Opened
from .parts import PipelinedParts
from .statistics import changing

logger = logging.getLogger(__name__)


def open_pipeline(
    model: nn.Module | None,
    stages: Sequence[nn.Module] | None,
    example: Any,
    loss: Loss,
    options: TrainingOptions,
    *,
    num_nodes: int,
    most_nodes: int,
    memory_bytes: int | None,
    device: torch.device | str | None,
    schedule: str,
    is_replacement: bool,
) -> Opened:
    """See ``Job.pipeline``. Raises CutError, PlanError, TypeError, ValueError for options that do not go with it.

    ``most_nodes``, ``is_replacement``: see ``templates_for``.
    """
    check_pipeline(options)
    schedules_named(schedule)
    named = None if device is None else device_named(device)
    layers = layered(model, stages, example)
    there = layers.home if named is None else named
    templates = templates_for(
        layers,
        example,
        loss,
        num_nodes=num_nodes,
        most_nodes=most_nodes,
        tolerate=options.tolerate,
        memory_bytes=memory_bytes,
        device=there,
        schedule=schedule,
        is_replacement=is_replacement,
    )
    parts = PipelinedParts(layers, changing(layers, example), exact=options.exact, schedule=schedule, device=there)
    return Opened(parts, templates, loss, Foresight())


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
            raise ValueError(f"training.join({name}=...) does not go with job.pipeline(): leave it out")


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
    most_nodes: int,
    tolerate: int,
    memory_bytes: int | None,
    device: torch.device,
    schedule: str = "auto",
    is_replacement: bool = False,
) -> Templates:
    """Measure the layers, or take what was measured before, and make templates for up to so many nodes.

    ``most_nodes``: that the launcher may start. If these hold the model and those that are here do not, the templates
    are for more than are here: the training waits for them.
    ``is_replacement``: a training waits for this process, so it measures nothing that was measured before. Members
    may come to other templates than each other: the proposer's are in the record of each generation. Raises PlanError.
    """
    profile = cached_profile(model, example, loss=loss, device=device, again=not is_replacement)
    node = Node(memory_bytes=memory_bytes or device_memory(device))
    try:
        return scheduled_templates(profile, node, schedule, num_nodes=num_nodes, tolerate=tolerate)
    except ModelTooLargeError as error:
        if error.smallest > most_nodes:
            raise
        logger.warning(
            "%s needs %d processes, and the launcher has started %d so far: it waits for more",
            profile.model, error.smallest, num_nodes,
        )  # fmt: skip
        return scheduled_templates(profile, node, schedule, num_nodes=error.smallest, tolerate=tolerate)


def device_named(device: torch.device | str) -> torch.device:
    """Return it with its number. Raises ValueError for one that is not here."""
    try:
        found = torch.device(device)
        return found if found.type == "cpu" else torch.empty(0, device=found).device
    except (RuntimeError, AssertionError) as error:  # AssertionError: PyTorch was built without it
        raise ValueError(
            f"job.pipeline(device={str(device)!r}): {str(error).partition('. ')[0].splitlines()[0]}; name a device of "
            "this machine, such as 'cuda:0' or 'cpu', or leave it out: then layers are trained where the model is"
        ) from None


def device_memory(device: torch.device) -> int | None:
    """Return how much of a device's memory a stage may use: nine tenths; None of the CPU, as its memory is shared."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory * 0.9)
