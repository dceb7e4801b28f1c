"""Compute a micro-batch a second time, and compare the gradients bit for bit: what a chip that miscalculates shows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..recovery.state_parts import bytes_of
from ..state import capture_rng, restore_rng


class GradientReplay:
    """Between two backwards of the same batch. Holds the first gradients until the second ones are there."""

    def __init__(self, parameters: Sequence[nn.Parameter], names: Sequence[str], buffers: Sequence[Tensor]) -> None:
        self._parameters, self._names, self._buffers = list(parameters), list(names), list(buffers)
        self._first: list[Tensor | None] = []
        self._rng: dict[str, Tensor] = {}
        self._kept: list[Tensor] = []

    def begin(self) -> None:
        """The first time begins: remember what the second one has to begin with."""
        self._rng = capture_rng()
        self._kept = [each.detach().clone() for each in self._buffers]

    def again(self) -> None:
        """The first time is over: take the gradients away, so that the second time begins as the first did."""
        self._first = [each.grad for each in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        restore_rng(self._rng)
        with torch.no_grad():
            for buffer, kept in zip(self._buffers, self._kept, strict=True):
                buffer.copy_(kept)
        self._kept = []

    def differing(self) -> str:
        """The second time is over: return the name of the first parameter with another gradient, or an empty text."""
        first, self._first = self._first, []
        for name, parameter, before in zip(self._names, self._parameters, first, strict=True):
            if not _is_equal(before, parameter.grad):
                return name
        return ""


def _is_equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Compare bits, so that NaN equals NaN, and 0 does not equal -0."""
    if one is None or other is None:
        return one is other
    return torch.equal(bytes_of(one), bytes_of(other))
