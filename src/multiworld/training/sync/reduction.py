"""Means: of a fragment's payloads over the members of a world, beside inner steps; of gradients on one member.

A fragment's payload is kept until its mean was taken, and another world can do it again after a loss: nothing of a
member is lost with another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...channel.base import ReduceOp
from ...errors import WorldBrokenError, WorldClosedError
from ...wire.progress.operation import Operation
from ...world.world import World
from ..engine.gradients import FlatBucket
from .codec import BLOCK, Codec, Compression, codec_of


class Sum(Protocol):
    """One sum under way in one world. Made in the same order on all members."""

    def wait(self) -> Tensor:
        """Return the sum, a tensor of its own with the same bits on all members. Raises the world's error."""


class AllReduce:
    """In full precision: each member sends 2 (n - 1) / n times the payload."""

    def __init__(self, world: World, payload: Tensor) -> None:
        self._world, self._device = world, payload.device
        self._total = payload.to(world.device, copy=True)
        self._operation = world.start_all_reduce(self._total, ReduceOp.SUM, None)

    def wait(self) -> Tensor:
        self._world.wait_thread(self._operation, None, None)
        return self._total.to(self._device)


class CompressedAllReduce:
    """Each member sums up one shard, in float32 from what all have sent of it, and hands the result to all.

    Only what is on the wire is compressed, once on each of the two ways. Sums are taken on the world's device.
    """

    def __init__(self, world: World, payload: Tensor, codec: Codec) -> None:
        self._world, self._codec, self._payload = world, codec, payload
        whole = max(1, -(-payload.numel() // (world.world_size * BLOCK))) * world.world_size * BLOCK
        padded = torch.nn.functional.pad(payload, (0, whole - payload.numel()))
        sends = [codec.encode(shard).to(world.device) for shard in padded.chunk(world.world_size)]
        self._received = [torch.empty(each.shape, dtype=each.dtype, device=world.device) for each in sends]
        self._operation: Operation[None] = world.start_all_to_all(self._received, sends, None)

    def wait(self) -> Tensor:
        self._world.wait_thread(self._operation, None, None)
        total = torch.stack([self._codec.decode(each) for each in self._received]).sum(0)
        packed = self._codec.encode(total)
        gathered = [torch.empty_like(packed) for _ in self._received]
        self._world.wait_thread(self._world.start_all_gather(gathered, packed, None), None, None)
        whole = torch.cat([self._codec.decode(each) for each in gathered])
        return whole[: self._payload.numel()].to(self._payload.device, self._payload.dtype)


class OuterReduction:
    """The fragments under way in one world, in the order in which all members have sent them."""

    def __init__(self, compression: Compression | None = None) -> None:
        self._codec = None if compression is None else codec_of(compression)
        self._world: World | None = None
        self._payloads: dict[int, Tensor] = {}
        self._sums: dict[int, Sum] = {}

    @property
    def under_way(self) -> Sequence[int]:
        """The fragments that were sent and not finished, in that order."""
        return tuple(self._payloads)

    def use(self, world: World, *, again: bool = True) -> None:
        """Go on in this world, and begin again with all that is under way. What the last one did of it is void.

        ``again=False``: all members have the means of what is under way here, so it is only to be finished.
        """
        self._world = world
        self._sums.clear()
        for fragment in self._payloads if again else ():
            self._try_to_begin(fragment)

    def send(self, fragment: int, payload: Tensor) -> None:
        """Begin to sum it up; the payload must not change from now on. A member that has none sends zeros.

        Never blocks, and does not raise if the world is broken: ``mean`` does.
        """
        assert fragment not in self._payloads, f"fragment {fragment} is under way already"
        self._payloads[fragment] = payload
        self._try_to_begin(fragment)

    def mean(self, fragment: int, contributors: int) -> Tensor:
        """Wait for the sum, and return its ``contributors``-th part: as many members have not sent zeros.

        Raises the world's error; after ``use`` it can be called again.
        """
        sum_ = self._sums.get(fragment)
        if sum_ is None:
            sum_ = self._sums[fragment] = self._begin(self._payloads[fragment])
        return sum_.wait() / contributors

    def finish(self, fragment: int) -> None:
        """All members have its mean: forget what was sent."""
        del self._payloads[fragment]
        self._sums.pop(fragment, None)

    def clear(self) -> None:
        """Forget everything: this member begins anew."""
        self._payloads.clear()
        self._sums.clear()

    def _try_to_begin(self, fragment: int) -> None:
        try:
            self._sums[fragment] = self._begin(self._payloads[fragment])
        except (WorldBrokenError, WorldClosedError):  # known to its owner, who comes with another world
            self._sums.pop(fragment, None)

    def _begin(self, payload: Tensor) -> Sum:
        assert self._world is not None, "a reduction needs a world"
        if self._codec is None:
            return AllReduce(self._world, payload)
        return CompressedAllReduce(self._world, payload, self._codec)


class LocalReduction:
    """The gradients of an inner step: the mean over this member's own micro-batches. Sends nothing."""

    def __init__(self) -> None:
        self._buckets: Sequence[FlatBucket] = ()
        self._num_micro_batches = 1

    def begin_step(self, buckets: Sequence[FlatBucket], num_micro_batches: int) -> None:
        self._buckets = buckets

    def end_micro_batch(self, micro_batch: int) -> None:
        pass

    def use(self, world: World | None, shares: Sequence[Collection[int]]) -> None:
        self._num_micro_batches = max(1, len(shares[0 if world is None else world.rank]))

    def launch(self, bucket: int) -> None:
        pass

    def wait(self) -> None:
        for flat in self._buckets:
            torch.div(flat.sums, self._num_micro_batches, out=flat.reduced)
