"""Runs a chain of layers forward and backward as several processes would, and a whole model beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..copying import random_states_kept
from .layer import Crossing

Tensors = tuple[torch.Tensor, ...]
Gradients = dict[int, torch.Tensor]
"""Of parameters, by the id of each."""


@dataclass(frozen=True)
class Trial:
    """``crossings``: what each layer but the last returned. ``output``: what the last one returned.

    ``gradients``: of a loss that every number of the output has a part in.
    """

    crossings: tuple[tuple[Crossing, ...], ...]
    output: Any
    gradients: Gradients


@contextlib.contextmanager
def left_as_it_was(modules: Sequence[nn.Module], tensors: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """Restore buffers and random states at the end: their values, and which tensor is which buffer."""
    parts = list(dict.fromkeys(part for module in modules for part in module.modules()))
    before = [(part, dict(part._buffers)) for part in parts]
    held = {id(value): value for _, buffers in before for value in buffers.values() if value is not None}
    copies = {key: value.detach().clone() for key, value in held.items()}
    on = [*held.values(), *(value for module in modules for value in module.parameters()), *tensors]
    try:
        with random_states_kept(on):
            yield
    finally:
        for part, buffers in before:
            part._buffers.update(buffers)
        with torch.no_grad():
            for key, value in held.items():
                if not torch.equal(value, copies[key]):
                    value.copy_(copies[key])


def run_whole(call: Callable[[], Any], parameters: Iterable[nn.Parameter]) -> Trial:
    """Run a model that is not cut."""
    wanted = _trained(parameters)
    with torch.enable_grad():
        output = call()
        roots = _roots(output)
        found = _gradients(roots, [_weights(root) for root in roots], wanted)
    return Trial((), output, _by_id(wanted, found))


def run_chain(modules: Sequence[nn.Module], inputs: Tensors) -> Trial:
    """Run layers one after the other, each with copies of what the one before it returned.

    Raises TypeError if a layer other than the last returns something else than a tuple of tensors. Errors of the
    layers pass through.
    """
    received: list[Tensors] = [tuple(value.detach() for value in inputs)]
    sent: list[Tensors] = []
    with torch.enable_grad():
        for place, module in enumerate(modules[:-1]):
            sent.append(_checked(module(*received[-1]), place))
            received.append(tuple(_received(value) for value in sent[-1]))
        output = modules[-1](*received[-1])
    roots = _roots(output)
    weights: list[torch.Tensor] = [_weights(root) for root in roots]
    gradients: Gradients = {}
    crossings: list[tuple[Crossing, ...]] = []
    for place in reversed(range(len(modules))):
        given = [value for value in received[place] if value.requires_grad]
        wanted = _trained(modules[place].parameters())
        found = _gradients(roots, weights, [*given, *wanted])
        _add(gradients, _by_id(wanted, found[len(given) :]))
        if place:
            back = _by_id(given, found[: len(given)])
            crossed = list(zip(sent[place - 1], received[place], strict=True))
            crossings.append(tuple(Crossing(tuple(one.shape), one.dtype, id(other) in back) for one, other in crossed))
            roots = [one for one, other in crossed if id(other) in back]
            weights = [back[id(other)] for _, other in crossed if id(other) in back]
    return Trial(tuple(reversed(crossings)), output, gradients)


def _checked(outputs: Any, place: int) -> Tensors:
    if not isinstance(outputs, tuple) or not all(isinstance(value, torch.Tensor) for value in outputs):
        raise TypeError(f"layer {place} returned {type(outputs).__name__}; expected a tuple of tensors")
    return outputs


def _received(value: torch.Tensor) -> torch.Tensor:
    copied = value.detach().clone(memory_format=torch.contiguous_format)
    return copied.requires_grad_(value.requires_grad)


def _trained(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [value for value in parameters if value.requires_grad]


def _roots(output: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return [leaf for leaf in leaves if leaf.requires_grad]


def _weights(root: torch.Tensor) -> torch.Tensor:
    """Return a number for each of a tensor, all different from each other: the gradient of its part in the loss."""
    numbers = torch.arange(root.numel(), device=root.device, dtype=torch.float32).mul_(0.37).cos_()
    return numbers.view(root.shape).to(root.dtype)


def _gradients(
    roots: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    if not roots or not wanted:
        return [None] * len(wanted)
    return torch.autograd.grad(list(roots), list(wanted), list(weights), allow_unused=True)


def _by_id(tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> Gradients:
    return {id(key): value for key, value in zip(tensors, gradients, strict=True) if value is not None}


def _add(total: Gradients, more: Gradients) -> None:
    for key, value in more.items():
        total[key] = total[key] + value if key in total else value
