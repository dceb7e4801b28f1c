"""Takes from a loader's micro-batch what a model is called with, and what its loss is computed against."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import PayloadMismatchError
from ..structure import Structure, taken_apart

LABELS = "labels"


@dataclass(frozen=True)
class Arguments:
    """What ``forward`` is called with. ``tensors``: those in it, in order. ``names``: of each, for errors."""

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    structure: Structure

    def call(self, module: nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Call a module with these tensors in the places of the example's."""
        args, kwargs = self.structure.fill(tensors)
        return module(*args, **kwargs)


def target_of(batch: Any) -> Any:
    """Return what the loss compares the output with: the last of a tuple or list, else the batch itself."""
    return batch[-1] if isinstance(batch, (tuple, list)) and batch else batch


def arguments_of(module: nn.Module, batch: Any) -> Arguments:
    """Return the arguments with which a batch calls a module.

    A dict: its entries by keyword, those that ``forward`` names and except ``labels``. A tuple or list: all but the
    last, which is the target. Else the batch itself. A ``forward`` that takes ``use_cache`` is told to keep no cache:
    training has no use for one, and each cut would have to carry it.

    Raises PayloadMismatchError for a batch without a tensor.
    """
    names = _keywords(module)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, object] = {"use_cache": False} if names is not None and "use_cache" in names else {}
    if isinstance(batch, Mapping):
        kwargs.update({str(key): batch[key] for key in batch if key != LABELS and (names is None or key in names)})
    elif isinstance(batch, (tuple, list)):
        args = tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)
    else:
        args = (batch,)
    value = args, dict(sorted(kwargs.items()))
    tensors, structure = taken_apart(value)
    if not tensors:
        raise PayloadMismatchError(
            f"{_described(batch)} has no tensor for {type(module).__name__}.forward{inspect.signature(module.forward)}"
        )
    paths = [path for path, leaf in pytree.tree_flatten_with_path(value)[0] if isinstance(leaf, torch.Tensor)]
    return Arguments(tuple(tensors), tuple(map(_name, paths)), structure)


def example_of(module: nn.Module, example: Any, home: torch.device | None) -> Arguments:
    """Return ``arguments_of`` an example, with its tensors on the model's device (``home``); None: where they are."""
    given = arguments_of(module, example)
    return given if home is None else replace(given, tensors=tuple(each.to(home) for each in given.tensors))


def home_of(parameters: Iterable[nn.Parameter]) -> torch.device | None:
    """Return the device of the first one, on which all of a model is; None if there is none."""
    return next((each.device for each in parameters), None)


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
