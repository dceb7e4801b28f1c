"""Takes from a loader's micro-batch what a model is called with, and what its loss is computed against."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import PayloadMismatchError

LABELS = "labels"


@dataclass(frozen=True)
class Arguments:
    """What ``forward`` is called with. ``tensors``: those in it, in order. ``names``: of each, for errors."""

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    form: Form


@dataclass(frozen=True)
class Form:
    """Arguments without their tensors. Two batches with equal forms differ in tensors alone.

    ``others``: the values that are no tensors, each with its place among all values.
    """

    spec: pytree.TreeSpec
    others: tuple[tuple[int, object], ...]

    def call(self, module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Call a module with these tensors in the places of the example's."""
        left = iter(tensors)
        others = dict(self.others)
        leaves = [others[place] if place in others else next(left) for place in range(self.spec.num_leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return module(*args, **kwargs)

    def differs(self, other: Form) -> bool:
        return self.spec != other.spec or repr(self.others) != repr(other.others)


def target_of(batch: Any) -> Any:
    """Return what the loss compares the output with: the last of a tuple or list, else the batch itself."""
    return batch[-1] if isinstance(batch, (tuple, list)) and batch else batch


def arguments_of(module: nn.Module, batch: Any) -> Arguments:
    """Return the arguments with which a batch calls a module.

    A dict: its entries by keyword, those that ``forward`` names and except ``labels``. A tuple or list: all but the
    last, which is the target. Else the batch itself. Raises PayloadMismatchError for a batch without a tensor.
    """
    if isinstance(batch, Mapping):
        names = _keywords(module)
        chosen = {str(key): value for key, value in batch.items() if key != LABELS and (names is None or key in names)}
        values: tuple[tuple[Any, ...], Mapping[str, object]] = ((), dict(sorted(chosen.items())))
    elif isinstance(batch, (tuple, list)):
        values = (tuple(batch[:-1]) if len(batch) > 1 else tuple(batch), {})
    else:
        values = ((batch,), {})
    with_paths, spec = pytree.tree_flatten_with_path(values)
    tensors = [(path, value) for path, value in with_paths if isinstance(value, torch.Tensor)]
    others = [(place, value) for place, (_, value) in enumerate(with_paths) if not isinstance(value, torch.Tensor)]
    if not tensors:
        raise PayloadMismatchError(
            f"{_described(batch)} has no tensor for {type(module).__name__}.forward{inspect.signature(module.forward)}"
        )
    return Arguments(
        tuple(value for _, value in tensors),
        tuple(_name(path) for path, _ in tensors),
        Form(spec, tuple(others)),
    )


def described(arguments: Arguments) -> str:
    """Return the names and shapes of tensors, for errors."""
    return ", ".join(
        f"{name}: {list(tensor.shape)}" for name, tensor in zip(arguments.names, arguments.tensors, strict=True)
    )


def _keywords(module: nn.Module) -> frozenset[str] | None:
    """Return the names that ``forward`` takes, or None if it names none, and takes all by ``**``."""
    parameters = inspect.signature(module.forward).parameters.values()
    named = frozenset(each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
    return None if not named and any(each.kind is each.VAR_KEYWORD for each in parameters) else named


def _name(path: tuple[Any, ...]) -> str:
    """Return an argument's name or number, with the path inside of it."""
    _, first, *rest = path
    key = getattr(first, "key", getattr(first, "idx", first))
    return f"{key if isinstance(key, str) else f'input {key}'}{pytree.keystr(tuple(rest))}"


def _described(batch: object) -> str:
    if isinstance(batch, Mapping):
        return f"a batch with the entries {', '.join(map(str, batch))}"
    return f"a batch that is a {type(batch).__name__}"
