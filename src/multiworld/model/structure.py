"""Takes values apart into tensors and the rest, and puts them together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Structure:
    """A value without its tensors. ``others``: what else it holds, each with its place among all."""

    spec: pytree.TreeSpec
    others: tuple[tuple[int, object], ...]

    def fill(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a value with these tensors."""
        left, others = iter(tensors), dict(self.others)
        leaves = [others[place] if place in others else next(left) for place in range(self.spec.num_leaves)]
        return pytree.tree_unflatten(leaves, self.spec)

    def differs(self, other: Structure) -> bool:
        return self.spec != other.spec or repr(self.others) != repr(other.others)


def taken_apart(value: Any) -> tuple[list[torch.Tensor], Structure]:
    leaves, spec = pytree.tree_flatten(value)
    others = tuple((place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], Structure(spec, others)


def without_objects(output: Any) -> Any:
    """Return an output whose mappings have lost what holds no tensors or plain values, such as a cache of keys.

    Raises TypeError for an output that is such an object, or has one in a list or tuple.
    """
    if isinstance(output, (torch.Tensor, *PLAIN)):
        return output
    if isinstance(output, Mapping):
        kept = {name: without_objects(value) for name, value in output.items() if _is_known(value)}
        return type(output)(**kept) if is_dataclass(output) else kept  # as the outputs of transformers are
    if isinstance(output, (tuple, list)):
        items = [without_objects(value) for value in output]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    raise TypeError(
        f"forward returned a value of type {type(output).__name__}; expected tensors, in tuples, lists and dicts"
    )


def _is_known(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, Mapping, tuple, list, *PLAIN))
