"""The gradients of one member: local sums over its finished micro-batches, apart from what the members reduce.

Backward makes the gradients of one micro-batch. They are added to flat buckets of local sums. A reduction works on a
second flat bucket, into which ``.grad`` is a view once the step counts. So a failed reduction costs nothing: the sums
of finished micro-batches are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

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
    """Of all parameters that were handed to ``replicate``.

    In the last micro-batch of a step ``on_ready(bucket)`` is called in backward, in the buckets' order, as soon as they
    are complete. Which parameter of a bucket comes last is learned in the first steps: one hook for each bucket costs
    next to nothing, one for each parameter does not. A gradient that comes after its bucket is ``late``.
    ``separate``: the sums hold one micro-batch only.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], names: Sequence[str], *, separate: bool = False) -> None:
        self.parameters, self.names = list(parameters), list(names)
        self._separate = separate
        shapes = [(local(each).numel(), local(each).element_size(), (each.dtype, each.device)) for each in parameters]
        self.buckets = [FlatBucket(bucket, parameters) for bucket in lay_out(shapes)]
        self._sums = [bucket.views(bucket.sums, self.parameters) for bucket in self.buckets]
        self._reduced = [view for bucket in self.buckets for view in bucket.views(bucket.reduced, self.parameters)]
        self._is_part = [hasattr(each, "to_local") for each in parameters]  # looked up once: per gradient it costs more
        self.used: set[int] = set()
        """The parameters that had a gradient in this step."""
        self.late: set[int] = set()
        """The buckets that got gradients after ``on_ready`` in this step."""
        self._is_fresh = [True] * len(self.buckets)  # nothing was added yet, and what is there is of another step
        self._taken: set[int] = set()
        self._order: list[int] | None = None  # in which gradients came, while that is learned
        self._on_ready: Callable[[int], None] | None = None
        """Set while a backward may hand over buckets."""
        self._hooks: list[RemovableHandle] = []  # on all parameters while the order is learned, then on the last ones
        self._is_learned = False

    def close(self) -> None:
        self._remove_hooks()

    def begin_step(self) -> None:
        """No micro-batch is finished."""
        self.used.clear()
        self.late.clear()
        self._is_fresh = [True] * len(self.buckets)

    def begin_micro_batch(self, on_ready: Callable[[int], None] | None) -> None:
        """Have backward make new gradients. ``on_ready``: this is the last one, so buckets may go as they fill."""
        for parameter in self.parameters:
            parameter.grad = None
        self._taken.clear()
        if self._separate:
            self._is_fresh = [True] * len(self.buckets)
        self._on_ready = on_ready
        if on_ready is not None and not self._is_learned:
            self._remove_hooks()  # of a micro-batch that was not ended
            self._order = []
            self._hooks = [_hook(each, partial(self._came, index)) for index, each in enumerate(self.parameters)]

    def end_micro_batch(self) -> None:
        """Backward is over: add the rest."""
        self._on_ready = None
        if self._order is not None:
            self._remove_hooks()
            self._learn(self._order)
            self._order = None
        for number in range(len(self.buckets)):
            if self._take(number) and number in self._taken:
                self.late.add(number)
        if self._separate:
            self.fill_up()

    def drop_micro_batch(self) -> None:
        """Backward is over, and what it made does not count."""
        for parameter in self.parameters:
            parameter.grad = None

    def fill_up(self) -> None:
        """What got no gradient is zero. Before the sums are used."""
        for number, bucket in enumerate(self.buckets):
            if self._is_fresh[number]:
                bucket.sums.zero_()
                self._is_fresh[number] = False

    def reduced_views(self) -> list[tuple[int, Tensor]]:
        """Return (parameter, its reduced gradient in its shape), as of the last reduction."""
        return list(self._reduced)

    def apply(self, unused: Collection[int]) -> None:
        """Let every ``.grad`` be the reduced gradient; None where no member had any: ``unused``, by index."""
        for index, view in self._reduced:
            parameter = self.parameters[index]
            if index in unused:
                parameter.grad = None
            else:
                parameter.grad = like(parameter.data, view) if self._is_part[index] else view

    def _take(self, number: int, *, only_all: bool = False) -> bool:
        """Add the gradients of a bucket that are there to the sums. Returns whether there were any.

        ``only_all``: take none as long as one is missing, and return False.
        """
        parameters, pairs, came = self.parameters, [], []
        for index, view in self._sums[number]:
            grad = parameters[index].grad
            if grad is not None:
                pairs.append((view, local(grad) if self._is_part[index] else grad))
                came.append(index)
            elif only_all:
                return False
        if not pairs:
            return False
        for index in came:
            parameters[index].grad = None
        self.used.update(came)
        sums, is_fresh = self.buckets[number].sums, self._is_fresh[number]
        self._is_fresh[number] = False
        has_sparse = any(grad.is_sparse for _, grad in pairs)
        if is_fresh and len(pairs) == len(self._sums[number]) and not has_sparse:
            torch.cat([grad.reshape(-1) for _, grad in pairs], out=sums)
            return True
        if is_fresh:
            sums.zero_()
        if not has_sparse:
            torch._foreach_add_([view for view, _ in pairs], [grad for _, grad in pairs])
            return True
        for view, grad in pairs:
            view.add_(grad)
        return True

    def _hand_over(self, parameter: Tensor) -> None:
        """In backward: hand over the buckets that are complete, up to the first that is not."""
        on_ready = self._on_ready
        if on_ready is None:
            return
        for number in range(len(self.buckets)):
            if number in self._taken:
                continue
            if not self._take(number, only_all=True):
                return
            self._taken.add(number)
            on_ready(number)

    def _came(self, index: int, parameter: Tensor) -> None:
        if self._order is not None:
            self._order.append(index)

    def _learn(self, order: Sequence[int]) -> None:
        """Only where every parameter came, and once, is there a last one."""
        place = {index: number for number, index in enumerate(order)}
        if len(place) == len(order) == len(self.parameters):
            last_of = [max((index for index, _ in views), key=place.__getitem__) for views in self._sums]
            self._hooks = [_hook(self.parameters[index], self._hand_over) for index in last_of]
            self._is_learned = True

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _hook(parameter: nn.Parameter, call: Callable[[Tensor], None]) -> RemovableHandle:
    return parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call, no-any-return]
