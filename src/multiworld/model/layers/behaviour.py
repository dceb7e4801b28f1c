"""Runs a whole model on the example, and refuses one that layers in several processes could not stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..checks import check_kind
from ..checks.snapshots import Snapshot, difference, snapshot
from ..checks.watching import random_states
from ..comparing import agree
from ..copying import private_copy
from ..errors import CutError
from ..structure import without_objects
from .batches import Arguments
from .locating import place_in
from .trial import Trial, left_as_it_was, run_whole


@dataclass(frozen=True)
class Behaviour:
    """``trial``: of the whole model. ``buffers``: their values after it. ``changed``: the names of those it changed."""

    trial: Trial
    buffers: dict[str, torch.Tensor]
    changed: frozenset[str]


def training_copy(model: nn.Module) -> nn.Module:
    """Return a copy that shares only the parameters. A model in evaluation mode has a copy in training mode.

    In a model in training mode, each part keeps its own mode: a frozen batch norm stays frozen.
    """
    made = private_copy(model)
    for original, copied in zip(model.modules(), made.modules(), strict=True):
        copied.training = original.training or not model.training
    return made


def refuse_kind(model: nn.Module) -> None:
    """Raise CutError for a wrapper of another model, or a model without values; TypeError for what is no module."""
    try:
        check_kind(model)
    except ValueError as error:
        raise CutError(type(model).__name__, str(error)) from None


def behaviour_of(model: nn.Module, given: Arguments) -> Behaviour:
    """Run the model twice, forward and backward. ``model``: a copy of the user's, which may change.

    Raises CutError for a model that fails, keeps state between calls besides buffers, draws random numbers from
    elsewhere than PyTorch, or has no gradients.
    """
    name = type(model).__name__

    def run() -> tuple[Trial, dict[str, torch.Tensor]]:
        trial = run_whole(lambda: without_objects(given.call(model, _own(given))), model.parameters())
        return trial, {name: value.clone() for name, value in model.named_buffers()}

    before = {name: value.clone() for name, value in model.named_buffers()}
    of_others = _foreign_random_states()
    try:
        with left_as_it_was([model], given.tensors):
            trial, buffers = run()
            drew = [kind for kind, state in _foreign_random_states().items() if state != of_others[kind]]
            first = _attributes(model)
        with left_as_it_was([model], given.tensors):
            again, _ = run()
            second = _attributes(model)
    except Exception as error:  # the model's own code may raise anything
        place = place_in(model, error)
        raise CutError(name, f"with the example it raises {type(error).__name__}: {error}", place) from error
    if drew:
        raise CutError(
            name,
            f"forward draws random numbers from {drew[0]}; each process would draw others. Draw them with PyTorch",
        )
    kept = difference(first, second)
    if kept is not None:
        raise CutError(name, f"forward changes its {kept} with each call; keep such state in a buffer, or in none")
    if not _same(trial, again):
        raise CutError(name, "forward gives something else when it is called again with the same random numbers")
    if not trial.gradients:
        raise CutError(name, "its output depends on no parameter that needs a gradient")
    return Behaviour(trial, buffers, frozenset(key for key, value in buffers.items() if _is_new(value, before[key])))


def _own(given: Arguments) -> list[torch.Tensor]:
    return [value.clone() for value in given.tensors]


def _is_new(value: torch.Tensor, before: torch.Tensor) -> bool:
    return value.shape != before.shape or not torch.equal(value, before)


def _same(one: Trial, other: Trial) -> bool:
    return agree(one.output, other.output) and one.gradients.keys() == other.gradients.keys()


def _attributes(model: nn.Module) -> Snapshot:
    return {name: value for name, value in snapshot(model).items() if name.startswith("attribute")}


def _foreign_random_states() -> dict[str, object]:
    return {kind: state for kind, state in random_states().items() if not kind.startswith("PyTorch")}
