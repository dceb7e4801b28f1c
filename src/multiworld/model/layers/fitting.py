"""Decides whether a batch fits the example with which a model was followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ..errors import PayloadMismatchError
from ..tracing import guards
from ..tracing.traced import fixed_sizes
from .batches import Arguments, arguments_of, described


@dataclass(frozen=True)
class Limits:
    """``fixed``: the sizes of each tensor, None for a free one. ``guards``: conditions on sizes.

    ``exact``: only batches of the example's shapes are taken. ``least_rows``: of the dimensions that have as many
    entries as the batch has rows, which come first in the first tensor; other free dimensions have two or more.
    """

    fixed: tuple[tuple[int | None, ...], ...]
    guards: tuple[str, ...]
    exact: bool = False
    least_rows: int = 2

    @classmethod
    def of(cls, module: fx.GraphModule, conditions: Sequence[str], *, exact: bool) -> Limits:
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        return cls(tuple(fixed_sizes(node, None) or () for node in inputs), tuple(conditions), exact)


class Fitting:
    """Takes the tensors of layer 0 from batches. Raises PayloadMismatchError for a batch that does not fit."""

    def __init__(self, model: nn.Module, example: Arguments, limits: Limits) -> None:
        self._model, self._example, self._limits = model, example, limits
        self._fits: set[guards.Sizes] = set()

    def __call__(self, batch: Any) -> tuple[torch.Tensor, ...]:
        found = arguments_of(self._model, batch)
        example = self._example
        if example.structure.differs(found.structure):
            raise self._refused(found, "it needs the same entries")
        for name, wanted, tensor in zip(example.names, example.tensors, found.tensors, strict=True):
            if wanted.dtype != tensor.dtype or wanted.dim() != tensor.dim():
                raise self._refused(
                    found,
                    f"{name} has {tensor.dim()} dimensions of {tensor.dtype}, not {wanted.dim()} of {wanted.dtype}",
                )
        sizes = tuple(tuple(value.shape) for value in found.tensors)
        if sizes not in self._fits:
            reason = self.problem(sizes)
            if reason:
                raise self._refused(found, reason)
            self._fits.add(sizes)
        return tuple(value.contiguous() for value in found.tensors)

    def problem(self, sizes: guards.Sizes) -> str | None:
        """Return why these sizes do not fit, or None if they fit."""
        limits, of_example = self._limits, tuple(tuple(value.shape) for value in self._example.tensors)
        if sizes == of_example:
            return None
        if limits.exact:
            return "it holds for the example's shapes alone"
        rows = of_example[0][:1]
        for name, fixed, have, before in zip(self._example.names, limits.fixed, sizes, of_example, strict=True):
            for dim, (wanted, size) in enumerate(zip(fixed, have, strict=True)):
                least = limits.least_rows if dim == 0 and before[:1] == rows else 2
                if wanted not in (None, size) or (wanted is None and size < least):
                    needed = f"{least} or more" if wanted is None else str(wanted)
                    return f"dimension {dim} of {name} has {size} entries, and has to have {needed}"
        broken = guards.broken(limits.guards, sizes)
        return None if broken is None else f"it holds where {guards.described(broken, self._example.names)}"

    def _refused(self, found: Arguments, reason: str) -> PayloadMismatchError:
        return PayloadMismatchError(
            f"{type(self._model).__name__} was cut with an example of {described(self._example)}, and got a batch of "
            f"{described(found)}: {reason}. Give batches that fit, or cut with another example"
        )
