"""Buffers that a forward changes, BatchNorm's statistics for example: equal on all members after each step.

Every micro-batch begins with the values that the step began with. What it changes is added up as gradients are, and the
step's end adds the mean change. So the result does not depend on how many members there are. A running mean takes one
update with the mean statistics of the step, where plain DDP keeps those of rank 0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from .buckets import lay_out
from .gradients import FlatBucket


class Buffers:
    """All persistent buffers of the replicated modules. ``separate``: the sums hold one micro-batch only."""

    def __init__(self, buffers: Sequence[Tensor], *, separate: bool = False) -> None:
        self._separate = separate
        self._buffers = list(buffers)
        self._before = [each.detach().clone() for each in buffers]
        self._indices: list[int] = []
        self.buckets: list[FlatBucket] = []
        self.changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._buffers)

    def begin_step(self, indices: Collection[int] | None) -> None:
        """Look at these, in all members alike; None: at all."""
        wanted = list(range(len(self._buffers))) if indices is None else sorted(indices)
        if wanted != self._indices or (wanted and not self.buckets):
            self._indices = wanted
            deltas = [torch.empty_like(self._buffers[index], dtype=_float_of(self._buffers[index])) for index in wanted]
            shapes = [(each.numel(), each.element_size(), (each.dtype, each.device)) for each in deltas]
            self.buckets = [FlatBucket(bucket, deltas) for bucket in lay_out(shapes)]
        self.changed.clear()
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.sums.zero_()
            for index in wanted:
                self._before[index].copy_(self._buffers[index])

    def begin_micro_batch(self) -> None:
        with torch.no_grad():
            for index in self.changed:
                self._buffers[index].copy_(self._before[index])
            if self._separate:
                for bucket in self.buckets:
                    bucket.sums.zero_()

    def end_micro_batch(self) -> None:
        with torch.no_grad():
            for bucket in self.buckets:
                for place, view in self._views(bucket, bucket.sums):
                    index = self._indices[place]
                    delta = self._buffers[index].to(view.dtype) - self._before[index].to(view.dtype)
                    if bool(delta.count_nonzero()):
                        self.changed.add(index)
                        view.add_(delta)

    def undo(self) -> None:
        """A micro-batch did not end."""
        with torch.no_grad():
            for index in self._indices:
                self._buffers[index].copy_(self._before[index])

    def apply(self) -> None:
        """Add the mean change that ``reduced`` holds."""
        with torch.no_grad():
            for bucket in self.buckets:
                for place, view in self._views(bucket, bucket.reduced):
                    index = self._indices[place]
                    buffer, before = self._buffers[index], self._before[index]
                    mean = before.to(view.dtype) + view
                    buffer.copy_(mean if buffer.is_floating_point() else mean.round())

    def _views(self, bucket: FlatBucket, flat: Tensor) -> list[tuple[int, Tensor]]:
        slots = bucket.layout.slots
        return [
            (slot.parameter, flat[slot.begin : slot.begin + slot.num_elements].view(self._shape(slot.parameter)))
            for slot in slots
        ]

    def _shape(self, place: int) -> torch.Size:
        return self._buffers[self._indices[place]].shape


def _float_of(buffer: Tensor) -> torch.dtype:
    return buffer.dtype if buffer.is_floating_point() else torch.float64
