"""Form the mean of a fragment's payloads over the members of a world, overlapped with their inner steps.

What was sent is kept until its mean was taken, so another world can do it again after a loss. Nothing of a member is
lost with another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...channel.base import ReduceOp
from ...wire.progress.operation import Operation
from ...world.world import World
from .codec import BLOCK, Codec, Compression, codec_of


class Sum(Protocol):
    """One sum under way in one world. Made in the same order on all members."""

    def wait(self) -> Tensor:
        """Return the sum, a tensor of its own with the same bits on all members. Raises the world's error."""


class AllReduce:
    """In full precision: each member sends 2 (n - 1) / n times the payload."""

    def __init__(self, world: World, payload: Tensor) -> None:
        self._world, self._total = world, payload.clone()
        self._operation = world.start_all_reduce(self._total, ReduceOp.SUM, None)

    def wait(self) -> Tensor:
        self._world.wait_thread(self._operation, None, None)
        return self._total


class CompressedAllReduce:
    """Each member sums up one shard, in float32 from what all have sent of it, and hands the result to all.

    Only what is on the wire is compressed, once on each of the two ways.
    """

    def __init__(self, world: World, payload: Tensor, codec: Codec) -> None:
        self._world, self._codec, self._payload = world, codec, payload
        whole = max(1, -(-payload.numel() // (world.world_size * BLOCK))) * world.world_size * BLOCK
        padded = torch.nn.functional.pad(payload, (0, whole - payload.numel()))
        sends = [codec.encode(shard) for shard in padded.chunk(world.world_size)]
        self._received = [torch.empty_like(sends[0]) for _ in sends]
        self._operation: Operation[None] = world.start_all_to_all(self._received, sends, None)

    def wait(self) -> Tensor:
        self._world.wait_thread(self._operation, None, None)
        total = torch.stack([self._codec.decode(each) for each in self._received]).sum(0)
        packed = self._codec.encode(total)
        gathered = [torch.empty_like(packed) for _ in self._received]
        self._world.wait_thread(self._world.start_all_gather(gathered, packed, None), None, None)
        whole = torch.cat([self._codec.decode(each) for each in gathered])
        return whole[: self._payload.numel()].to(self._payload.dtype)


class OuterReduction:
    """The fragments under way in one world.

    ``contributors``: how many of its members have a payload; the others send zeros.
    """

    def __init__(self, compression: Compression | None = None) -> None:
        self._codec = None if compression is None else codec_of(compression)
        self._world: World | None = None
        self._contributors = 1
        self._payloads: dict[int, Tensor] = {}
        self._sums: dict[int, Sum] = {}

    @property
    def under_way(self) -> Sequence[int]:
        """The fragments that were sent and not finished, in that order."""
        return tuple(self._payloads)

    def use(self, world: World, contributors: int) -> None:
        """Go on in this world, and begin again with all that is under way. What the last one did of it is void."""
        if contributors < 1:
            raise ValueError(f"contributors={contributors}: a mean needs at least one member with a payload")
        self._world, self._contributors = world, contributors
        self._sums = {fragment: self._begin(payload) for fragment, payload in self._payloads.items()}

    def send(self, fragment: int, payload: Tensor) -> None:
        """Begin to sum it up; the payload must not change from now on. Never blocks.

        Raises the world's error if it is broken; the payload is kept for the next world then, too.
        """
        assert fragment not in self._payloads, f"fragment {fragment} is under way already"
        self._payloads[fragment] = payload
        self._sums[fragment] = self._begin(payload)

    def mean(self, fragment: int) -> Tensor:
        """Wait, and return a tensor of its own. Raises the world's error; after ``use`` it can be called again."""
        return self._sums[fragment].wait() / self._contributors

    def finish(self, fragment: int) -> None:
        """All members have its mean: forget what was sent."""
        del self._payloads[fragment], self._sums[fragment]

    def _begin(self, payload: Tensor) -> Sum:
        assert self._world is not None, "a reduction needs a world"
        if self._codec is None:
            return AllReduce(self._world, payload)
        return CompressedAllReduce(self._world, payload, self._codec)
