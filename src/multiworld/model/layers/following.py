"""Follows a model in training mode, with the parts whole that torch.export cannot follow."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import fx, nn

from ..errors import CutError
from ..structure import Structure, taken_apart, without_objects
from ..tracing.exported import follow
from ..tracing.kept_whole import kept_whole, put_parts_back, recorded_calls, twin_of
from .batches import Arguments
from .behaviour import training_copy
from .custom_gradients import with_own_gradients
from .fitting import Limits
from .locating import path_of_error, place_in
from .trial import left_as_it_was

MOST_TRIES = 8
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Graph:
    """``module.graph`` returns the tensors of an output of this structure. ``whole``: the paths of parts kept whole."""

    module: fx.GraphModule
    output: Structure
    limits: Limits
    whole: frozenset[str]


def followed(model: nn.Module, given: Arguments) -> Graph:
    """Return the graph of a model.

    A part that torch.export cannot follow, or that defines gradients of its own, is kept whole, and so are the others
    of its kind. Then only batches of the example's shapes are taken. Raises CutError if this is the model itself.
    """
    copied = training_copy(model)
    with left_as_it_was([copied], given.tensors), torch.enable_grad():
        own = with_own_gradients(copied, lambda: given.call(copied, [value.clone() for value in given.tensors]))
    if "" in own:
        raise CutError(
            type(model).__name__, "its own forward applies a torch.autograd.Function; give that a module of its own"
        )
    whole = _of_their_kinds(model, own)
    for _ in range(MOST_TRIES):
        copied = training_copy(model)
        try:
            return _graph(model, copied, given, whole)
        except Exception as error:  # the model's own code and torch.export may raise anything
            path, problem = path_of_error(copied, error), CutError(type(model).__name__, *_why(copied, error))
            while path in whole:  # what it is called in cannot be followed either
                path = path.rpartition(".")[0]
            if not path:
                raise problem from error
            logger.info("%s is kept whole: %s", path, problem.reason)
            whole = _of_their_kinds(model, [*whole, path])
            last = error
    raise problem from last


def _graph(model: nn.Module, copied: nn.Module, given: Arguments, whole: Collection[str]) -> Graph:
    structures: list[Structure] = []

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        output, structure = taken_apart(without_objects(given.call(copied, tensors)))
        structures[:] = [structure]
        return output

    with torch.enable_grad():
        with left_as_it_was([copied], given.tensors):
            calls = recorded_calls(copied, whole, lambda: call(*(value.clone() for value in given.tensors)))
        with kept_whole(copied, calls) as numbered:
            found = follow(copied, call, given.tensors, free_sizes=not whole)
    modes = dict(zip(model.modules(), (part.training for part in copied.modules()), strict=True))
    put_parts_back(found.module, numbered, {path: twin_of(model.get_submodule(path), modes) for path in whole})
    if found.others:
        logger.info("%s takes batches of the example's shapes alone: %s", type(model).__name__, found.others)
    limits = Limits.of(found.module, found.guards, exact=bool(found.others or whole))
    return Graph(found.module, structures[0], limits, frozenset(whole))


def _of_their_kinds(model: nn.Module, paths: Collection[str]) -> frozenset[str]:
    """Return the paths, with those of other parts of the same classes of the user, none inside of another."""
    kinds = {type(model.get_submodule(path)) for path in paths}
    theirs = {kind for kind in kinds if not kind.__module__.startswith("torch.")}
    found = {*paths, *(path for path, part in model.named_modules() if path and type(part) in theirs)}
    return frozenset(path for path in found if not any(path.startswith(f"{other}.") for other in found))


def _why(model: nn.Module, error: Exception) -> tuple[str, str]:
    """Return the reason and the place."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    if "DataDependent" in type(error).__name__ or "data-dependent" in str(error):
        return f"what it computes is chosen by values in the batch ({first})", place_in(model, error)
    return f"torch.export cannot follow it ({type(error).__name__}: {first})", place_in(model, error)
