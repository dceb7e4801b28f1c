"""A model as a chain of layers: a layer takes the tensors that the one before it returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .batches import home_of, target_of


@dataclass(frozen=True)
class Crossing:
    """A tensor that one layer hands to the next, as it was with the example.

    ``needs_grad``: whether a gradient comes back for it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool

    @property
    def size_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class ModelLayer:
    """``module(*tensors)`` returns a tuple of tensors: what the next layer is called with. The last layer returns the
    model's own output. Adjacent layers form a stage by plain calls, one after the other.

    ``parameters``, ``buffers``: the model's own objects, by their names in the whole model. A parameter that several
    names stand for has the first of them, and may be in several layers. The module is in training mode, also
    where the model is not. ``outputs``: None for the last layer, whose output may have any structure.
    """

    name: str
    module: nn.Module
    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, torch.Tensor]
    outputs: tuple[Crossing, ...] | None


@dataclass(frozen=True)
class LayeredModel:
    """``digest``: of names, shapes, types and code. Processes whose digests differ did not cut the same model.

    ``inputs``: what layer 0 got with the example. A crossing that needs a gradient may get none, if the loss
    depends on no part of it: take zeros.
    """

    name: str
    layers: tuple[ModelLayer, ...]
    inputs: tuple[Crossing, ...]
    digest: str
    take: Callable[[Any], tuple[torch.Tensor, ...]] = field(repr=False)

    def inputs_of(self, batch: Any, device: torch.device | None = None) -> tuple[torch.Tensor, ...]:
        """Return what layer 0 is called with for a micro-batch of a loader, on a device; None: where the batch is.

        Raises PayloadMismatchError for a batch with other entries than the example, or of shapes for which the layers
        would not compute what the model computes.
        """
        inputs = self.take(batch)
        return inputs if device is None else tuple(each.to(device) for each in inputs)

    def target_of(self, batch: Any, device: torch.device | None = None) -> Any:
        """Return what the loss gets beside the output, its tensors on a device; None: where the batch is."""
        target = target_of(batch)
        return target if device is None else pytree.tree_map_only(torch.Tensor, lambda each: each.to(device), target)

    @property
    def home(self) -> torch.device:
        """Where the program has built the model; the CPU if it has no parameters."""
        return home_of(self.parameters().values()) or torch.device("cpu")

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters of all layers by name, each once."""
        return {name: value for layer in self.layers for name, value in layer.parameters.items()}
