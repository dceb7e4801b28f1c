"""The gradients of one member: local sums over its finished micro-batches, apart from what the members reduce.

A parameter's ``.grad`` is a view into a flat bucket of local sums while micro-batches are computed. A reduction works
on a second flat bucket. Only when the step counts, ``.grad`` becomes a view into that one. So a failed reduction costs
nothing: the sums of finished micro-batches are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .buckets import Bucket, lay_out


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a DTensor, or the tensor itself."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def like(parameter: Tensor, part: Tensor) -> Tensor:
    """Return ``part`` as what the parameter is: a DTensor with the same placements, or the tensor itself."""
    if not hasattr(parameter, "to_local"):
        return part
    from torch.distributed.tensor import DTensor  # takes long to import, and is there already

    assert isinstance(parameter, DTensor)
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


class FlatBucket:
    """One bucket: ``sums`` of the finished micro-batches here, ``reduced`` of all members. Both ``[num_elements]``."""

    def __init__(self, bucket: Bucket, parameters: Sequence[Tensor]) -> None:
        like = local(parameters[bucket.slots[0].parameter])
        self.layout = bucket
        self.sums = torch.zeros(bucket.num_elements, dtype=like.dtype, device=like.device)
        self.reduced = torch.zeros_like(self.sums)
        self.num_missing = 0

    def views(self, flat: Tensor, parameters: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        """Return (parameter, its part of ``flat`` in its shape)."""
        return [
            (
                slot.parameter,
                flat[slot.begin : slot.begin + slot.num_elements].view(local(parameters[slot.parameter]).shape),
            )
            for slot in self.layout.slots
        ]


class Gradients:
    """Of all parameters that were handed to ``replicate``. ``on_ready(bucket)`` is called in backward, in order."""

    def __init__(self, parameters: Sequence[nn.Parameter], names: Sequence[str]) -> None:
        self.parameters, self.names = list(parameters), list(names)
        shapes = [(local(each).numel(), local(each).element_size(), (each.dtype, each.device)) for each in parameters]
        self.buckets = [FlatBucket(bucket, parameters) for bucket in lay_out(shapes)]
        self._bucket_of: dict[int, int] = {}
        self._sums: dict[int, Tensor] = {}
        self._reduced: dict[int, Tensor] = {}
        for number, bucket in enumerate(self.buckets):
            for index, view in bucket.views(bucket.sums, self.parameters):
                self._bucket_of[index], self._sums[index] = number, view
            for index, view in bucket.views(bucket.reduced, self.parameters):
                self._reduced[index] = view
        self.used: set[int] = set()
        """The parameters that had a gradient in this step."""
        self.used_twice = False
        """Whether a parameter got gradients more than once in a micro-batch: then no bucket can go in backward."""
        self.came_late = False
        """Whether a gradient came after the reduction of its bucket had begun."""
        self._fired: set[int] = set()
        self._on_ready: Callable[[int], None] | None = None
        self._next = 0
        self._missing: list[int] = []
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]
            for index, each in enumerate(self.parameters)
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin_step(self) -> None:
        """No micro-batch is finished."""
        self.used.clear()
        for bucket in self.buckets:
            bucket.sums.zero_()

    def begin_micro_batch(self, on_ready: Callable[[int], None] | None) -> None:
        """Have backward add to the local sums. ``on_ready``: this is the last one, so buckets may go as they fill."""
        self._fired.clear()
        self._on_ready, self._next = on_ready, 0
        if on_ready is not None:
            self._missing = [len(bucket.layout.slots) for bucket in self.buckets]
        for index, parameter in enumerate(self.parameters):
            self._point(index, parameter, self._sums[index])

    def end_micro_batch(self) -> None:
        self._on_ready = None

    def apply(self, is_unused: Callable[[int], bool]) -> None:
        """Let every ``.grad`` be the reduced gradient; None where no member had any."""
        for index, parameter in enumerate(self.parameters):
            if is_unused(index):
                parameter.grad = None
            else:
                self._point(index, parameter, self._reduced[index])

    def _point(self, index: int, parameter: nn.Parameter, view: Tensor) -> None:
        if parameter.grad is not view:  # of a DTensor: as a new one each time
            parameter.grad = like(parameter.data, view)

    def _collect(self, index: int, grad: Tensor, view: Tensor) -> None:
        """The program had set ``.grad`` to None before backward, which made a tensor of its own then."""
        if local(grad).data_ptr() != view.data_ptr():
            view.add_(local(grad))
            self._point(index, self.parameters[index], view)

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        view, bucket = self._sums[index], self._bucket_of[index]
        used, fired_now = self.used, self._fired

        def fired(parameter: Tensor) -> None:  # for each parameter in each backward: it must be quick
            grad = parameter.grad
            if grad is not view and grad is not None:
                self._collect(index, grad, view)
            if index in fired_now:
                self.used_twice = True
                self.came_late |= self._on_ready is not None and bucket < self._next
                return
            fired_now.add(index)
            used.add(index)
            if self._on_ready is not None:
                self._missing[bucket] -= 1
                while self._next < len(self.buckets) and not self._missing[self._next]:
                    self._on_ready(self._next)
                    self._next += 1

        return fired
