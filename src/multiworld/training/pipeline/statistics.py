"""Buffers that a forward changes, BatchNorm's statistics for example: the same on all owners after each step.

A stage computes several forwards before the first backward, and autograd may need a buffer as the forward has left it.
So each micro-batch gets copies of these buffers, with the values that the step began with. What it changes is added up
once its backward is over, too: sums hold whole micro-batches only. The step's end adds the mean change, as for replicas
(see ``engine.buffers``). A step that is given up leaves the buffers as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ...model.layers import LayeredModel
from ..engine.buckets import lay_out
from ..engine.gradients import FlatBucket


class Statistics:
    """``buffers``: by name; ``modules``: those that may have them. ``separate``: the sums hold one micro-batch only."""

    def __init__(self, buffers: Mapping[str, Tensor], modules: Iterable[nn.Module], *, separate: bool) -> None:
        self._buffers = list(buffers.values())
        self._separate = separate
        self._places = _places(self._buffers, modules)
        self._copies: list[Tensor] = []
        self._changes: dict[int, list[Tensor]] = {}
        """Of micro-batches between their forward and their backward."""
        deltas = [torch.empty_like(each, dtype=_float_of(each)) for each in self._buffers]
        shapes = [(each.numel(), each.element_size(), (each.dtype, each.device)) for each in deltas]
        self.buckets = [FlatBucket(bucket, deltas) for bucket in lay_out(shapes)]

    def begin_step(self) -> None:
        self._changes.clear()
        for bucket in self.buckets:
            bucket.sums.zero_()

    def begin_forward(self) -> None:
        if not self._buffers:
            return
        self._copies = [each.clone() for each in self._buffers]
        self._put(self._copies)

    def end_forward(self, micro_batch: int) -> None:
        if not self._buffers:
            return
        self._put(self._buffers)
        pairs = zip(self._copies, self._buffers, strict=True)
        with torch.no_grad():
            self._changes[micro_batch] = [copy.to(_float_of(own)) - own.to(_float_of(own)) for copy, own in pairs]
        self._copies = []

    def end_backward(self, micro_batch: int) -> None:
        """Add up what the micro-batch changed."""
        if not self._buffers:
            return
        changes = self._changes.pop(micro_batch)
        for bucket in self.buckets:
            if self._separate:
                bucket.sums.zero_()
            for index, view in self._views(bucket, bucket.sums):
                view.add_(changes[index])

    def drop(self, micro_batch: int) -> None:
        """What it changed is in the sums of another member."""
        self._changes.pop(micro_batch, None)

    def begin_recompute(self) -> None:
        """What a forward changes that is computed once more, in backward, does not count; ``undo`` ends it."""
        self.begin_forward()

    def undo(self) -> None:
        """A forward did not end, or was computed once more."""
        if self._copies:
            self._put(self._buffers)
            self._copies = []

    def apply(self) -> None:
        """Add the mean change that ``reduced`` holds."""
        for bucket in self.buckets:
            for index, view in self._views(bucket, bucket.reduced):
                add_change(self._buffers[index], view)

    def mean_changes(self) -> dict[int, Tensor]:
        """Return by the index of a buffer what ``apply`` adds: views."""
        return {index: view for bucket in self.buckets for index, view in self._views(bucket, bucket.reduced)}

    def _put(self, tensors: Sequence[Tensor]) -> None:
        for places, tensor in zip(self._places, tensors, strict=True):
            for module, key in places:
                module._buffers[key] = tensor

    def _views(self, bucket: FlatBucket, flat: Tensor) -> Iterator[tuple[int, Tensor]]:
        for slot in bucket.layout.slots:
            part = flat[slot.begin : slot.begin + slot.num_elements]
            yield slot.parameter, part.view(self._buffers[slot.parameter].shape)


def add_change(buffer: Tensor, change: Tensor) -> None:
    """Add to a buffer what a step has changed; ``change`` may be of a wider type."""
    with torch.no_grad():
        mean = buffer.to(change.dtype) + change
        buffer.copy_(mean if buffer.is_floating_point() else mean.round())


def changing(model: LayeredModel, example: object) -> frozenset[str]:
    """Return the names of the buffers that a forward with the example changes. The model stays as it is."""
    buffers = {name: each for layer in model.layers for name, each in layer.buffers.items()}
    if not buffers:
        return frozenset()
    state = torch.get_rng_state()
    copies = Statistics(buffers, (layer.module for layer in model.layers), separate=False)
    copies.begin_forward()
    try:
        with torch.no_grad():
            values = model.inputs_of(example, model.home)
            for layer in model.layers:
                values = layer.module(*values)
        return frozenset(name for name, copy in zip(buffers, copies._copies, strict=True) if copy._version)
    finally:
        copies.undo()
        torch.set_rng_state(state)


def _places(buffers: Sequence[Tensor], modules: Iterable[nn.Module]) -> list[list[tuple[nn.Module, str]]]:
    index = {id(each): number for number, each in enumerate(buffers)}
    places: list[list[tuple[nn.Module, str]]] = [[] for _ in buffers]
    for root in modules:
        for module in root.modules():
            for key, buffer in module._buffers.items():
                if buffer is not None and id(buffer) in index:
                    places[index[id(buffer)]].append((module, key))
    return places


def _float_of(buffer: Tensor) -> torch.dtype:
    return buffer.dtype if buffer.is_floating_point() else torch.float64
