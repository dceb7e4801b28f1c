"""Buffers that a forward changes, BatchNorm's statistics for example: equal on all members after each step.

Every micro-batch begins with the values that the step began with. What it changes is added up as gradients are, and the
step's end adds the mean change. So the result does not depend on how many members there are. A running mean takes one
update with the mean statistics of the step, where plain DDP keeps those of rank 0.

Large buffers that never change, masks for example, are not reduced: after a first step only those are looked at that
are small or have changed before. If another one changes, it is as before after that step, on all members, and it is
looked at from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from .buckets import lay_out
from .gradients import FlatBucket

SMALL_BYTES = 1 << 16


class Buffers:
    """All persistent buffers of the replicated modules. ``separate``: the sums hold one micro-batch only."""

    def __init__(self, buffers: Sequence[Tensor], *, separate: bool = False) -> None:
        self._separate = separate
        self._buffers = list(buffers)
        self._before = [each.detach().clone() for each in buffers]
        self._indices: list[int] = []
        self._others: dict[int, int] = {}
        """Version of each buffer that this step does not look at, as PyTorch counts changes in place."""
        self.buckets: list[FlatBucket] = []
        self.changed: set[int] = set()
        """Those that a forward has changed in this step, here."""

    def __len__(self) -> int:
        return len(self._buffers)

    def next_to_look_at(self, looked_at: Collection[int] | None, changed: Collection[int]) -> frozenset[int]:
        """Return which ones the step after one with ``looked_at`` looks at. ``changed``: in it, on any member."""
        small = [index for index, each in enumerate(self._buffers) if each.nbytes <= SMALL_BYTES]
        return frozenset(looked_at or ()) | frozenset(changed) | frozenset(small)

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
            looked_at = set(wanted)
            for index, buffer in enumerate(self._buffers):
                if index not in looked_at:
                    if self._others.get(index) != buffer._version:  # by a state that was loaded, or by the program
                        self._before[index].copy_(buffer)
                    self._others[index] = buffer._version
                else:
                    self._others.pop(index, None)

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
        self.changed |= self._changed_others()

    def undo(self) -> None:
        """A micro-batch did not end."""
        with torch.no_grad():
            others = self._changed_others()
            for index in (*self._indices, *others):
                self._buffers[index].copy_(self._before[index])
            for index in others - self.changed:
                self._others[index] = self._buffers[index]._version

    def _changed_others(self) -> set[int]:
        return {index for index, version in self._others.items() if self._buffers[index]._version != version}

    def apply(self) -> None:
        """Add the mean change that ``reduced`` holds."""
        with torch.no_grad():
            for index in self.changed & self._others.keys():
                self._buffers[index].copy_(self._before[index])
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
