"""Reduce the gradients of a step over the members of a world: as one sum, or over the canonical tree (``exact``).

Where the world moves tensors on another device than that of the gradients, they are copied there and back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from ...channel.base import ReduceOp
from ...wire.progress.operation import Operation
from ...world.world import World
from .gradients import FlatBucket
from .tree import Node, Summation, nodes_of, sum_up

ALL: Final[Node] = (-1, 0)
"""Stands for the sum of all finished micro-batches, where no tree says in which order they are added."""


class Reduction(Protocol):
    """How buckets become equal on all members. ``launch`` is called for each bucket, in the same order on all."""

    def begin_step(self, buckets: Sequence[FlatBucket], num_micro_batches: int) -> None:
        """No micro-batch is finished; ``buckets`` are all of this step."""

    def end_micro_batch(self, micro_batch: int) -> None:
        """It is finished: the sums hold it."""

    def use(self, world: World | None, shares: Sequence[Collection[int]]) -> None:
        """Reduce in this world, whose rank i has the micro-batches ``shares[i]``. What was launched before is void.

        None: there is no other member.
        """

    def launch(self, bucket: int) -> None:
        """Begin to reduce a bucket, perhaps once more because its sums have changed."""

    def wait(self) -> None:
        """Launch what was not, and wait for all: ``reduced`` holds the sums. Raises the world's error."""


class ResumableReduction(Reduction, Protocol):
    """One that can go on from the sums of another."""

    def sums(self, bucket: int) -> Mapping[Node, Tensor]:
        """Return what the finished micro-batches gave, by what of them it is the sum: views."""

    def add(self, bucket: int, sums: Mapping[Node, Tensor]) -> None:
        """Begin with what other micro-batches gave, elsewhere or before. The tensors belong to this one then."""


class _Launching:
    """What both have in common: which buckets are under way in which world."""

    def __init__(self) -> None:
        self.buckets: Sequence[FlatBucket] = ()
        self._world: World | None = None
        self._launched: set[int] = set()
        self._under_way: list[tuple[int, Operation[None], list[Tensor]]] = []
        """Bucket, operation, and the tensors on the world's device that it fills."""

    @property
    def world(self) -> World:
        assert self._world is not None, "a reduction needs a world"
        return self._world

    def _wait(self, operation: Operation[None]) -> None:
        self.world.wait_thread(operation, None, None)


class SumReduction(_Launching):
    """An all-reduce for each bucket: the fastest. Its rounding depends on the number of members."""

    def begin_step(self, buckets: Sequence[FlatBucket], num_micro_batches: int) -> None:
        self.buckets = buckets

    def end_micro_batch(self, micro_batch: int) -> None:
        pass

    def sums(self, bucket: int) -> Mapping[Node, Tensor]:
        return {ALL: self.buckets[bucket].sums}

    def add(self, bucket: int, sums: Mapping[Node, Tensor]) -> None:
        for each in sums.values():
            self.buckets[bucket].sums.add_(each)

    def use(self, world: World | None, shares: Sequence[Collection[int]]) -> None:
        self._world, self._under_way = world, []
        self._launched.clear()

    def launch(self, bucket: int) -> None:
        flat = self.buckets[bucket]
        flat.reduced.copy_(flat.sums)
        self._launched.add(bucket)
        if self._world is None:
            return
        carried = flat.reduced.to(self.world.device)  # itself, where it is there already
        self._under_way.append((bucket, self.world.start_all_reduce(carried, ReduceOp.SUM, None), [carried]))

    def wait(self) -> None:
        for bucket in range(len(self.buckets)):
            if bucket not in self._launched:
                self.launch(bucket)
        under_way, self._under_way = self._under_way, []
        for bucket, operation, (carried,) in under_way:
            self._wait(operation)
            reduced = self.buckets[bucket].reduced
            if carried is not reduced:
                reduced.copy_(carried)


class TreeReduction(_Launching):
    """The sum over the canonical tree (see ``tree``): the same bits however micro-batches are dealt.

    Every rank gets all ranks' subtrees of one shard of each bucket, sums them up, and hands the result to all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_leaves = 1
        self._partial: list[dict[Node, Tensor]] = []
        self._summations: list[Summation] = []
        self._free: list[list[Tensor]] = []
        self._nodes: list[list[Node]] = []

    def begin_step(self, buckets: Sequence[FlatBucket], num_micro_batches: int) -> None:
        if len(self._free) != len(buckets):
            self._free = [[] for _ in buckets]
        else:
            for free, partial in zip(self._free, self._partial, strict=False):
                free.extend(partial.values())
        self.buckets, self._num_leaves = buckets, num_micro_batches
        self._partial = [{} for _ in buckets]
        self._summations = [Summation(num_micro_batches) for _ in buckets]

    def end_micro_batch(self, micro_batch: int) -> None:
        for number, flat in enumerate(self.buckets):
            partial, free = self._partial[number], self._free[number]
            value = free.pop() if free and free[-1].shape == flat.sums.shape else torch.empty_like(flat.sums)
            partial[(0, micro_batch)] = value.copy_(flat.sums)
            self._summations[number].add(micro_batch, _adder(partial, free), _renamer(partial))

    def sums(self, bucket: int) -> Mapping[Node, Tensor]:
        return self._partial[bucket]

    def add(self, bucket: int, sums: Mapping[Node, Tensor]) -> None:
        partial, free = self._partial[bucket], self._free[bucket]
        for node, value in sums.items():
            if node in partial:
                raise ValueError(f"two sums hold the micro-batches of {node}")
            partial[node] = value
            self._summations[bucket].add_node(node, _adder(partial, free), _renamer(partial))

    def use(self, world: World | None, shares: Sequence[Collection[int]]) -> None:
        self._world, self._under_way = world, []
        self._launched.clear()
        self._nodes = [nodes_of(share, self._num_leaves) for share in shares]
        if sum(map(len, shares)) != self._num_leaves:  # given up by the job's choice: no tree of all of them
            raise ValueError("exact=True needs a constant global batch")

    def launch(self, bucket: int) -> None:
        if self._world is None:
            return
        self._launched.add(bucket)
        world, flat = self.world, self.buckets[bucket]
        shard = _shard_size(flat, world.world_size)
        mine = self._partial[bucket]
        padded = [_padded(mine[node], shard * world.world_size) for node in self._nodes[world.rank]]
        sends = []
        for rank in range(world.world_size):
            parts = [each[rank * shard : (rank + 1) * shard] for each in padded]
            sends.append((torch.cat(parts) if parts else flat.sums.new_empty(0)).to(world.device))
        receives = [_empty(flat, len(nodes) * shard, world) for nodes in self._nodes]
        self._under_way.append((bucket, world.start_all_to_all(receives, sends, None), receives))

    def wait(self) -> None:
        if self._world is None:
            for flat, partial in zip(self.buckets, self._partial, strict=True):
                flat.reduced.copy_(sum_up(partial, self._num_leaves, torch.add))
            return
        for bucket in range(len(self.buckets)):
            if bucket not in self._launched:
                self.launch(bucket)
        self._launched.clear()
        gathering = []
        for number, operation, received in self._under_way:
            self._wait(operation)
            gathering.append(self._gather(number, received))
        self._under_way = []
        for flat, (operation, whole) in zip(self.buckets, gathering, strict=True):
            self._wait(operation)
            flat.reduced.copy_(whole[: flat.reduced.numel()])

    def _gather(self, bucket: int, received: Sequence[Tensor]) -> tuple[Operation[None], Tensor]:
        world, flat = self.world, self.buckets[bucket]
        shard = _shard_size(flat, world.world_size)
        values: dict[Node, Tensor] = {}
        for nodes, flats in zip(self._nodes, received, strict=True):
            values.update(zip(nodes, torch.split(flats, shard) if nodes else (), strict=True))
        total = sum_up(values, self._num_leaves, torch.add)
        whole = _empty(flat, shard * world.world_size, world)
        return world.start_all_gather(list(torch.split(whole, shard)), total.contiguous(), None), whole


def _empty(flat: FlatBucket, num_elements: int, world: World) -> Tensor:
    return torch.empty(num_elements, dtype=flat.sums.dtype, device=world.device)


def _shard_size(flat: FlatBucket, num_members: int) -> int:
    return -(-flat.sums.numel() // num_members)


def _padded(value: Tensor, num_elements: int) -> Tensor:
    return value if value.numel() == num_elements else torch.nn.functional.pad(value, (0, num_elements - value.numel()))


def _adder(partial: dict[Node, Tensor], free: list[Tensor]) -> Callable[[Node, Node, Node], None]:
    def combine(parent: Node, left: Node, right: Node) -> None:
        value, other = partial.pop(left), partial.pop(right)
        partial[parent] = value.add_(other)
        free.append(other)

    return combine


def _renamer(partial: dict[Node, Tensor]) -> Callable[[Node, Node], None]:
    def rename(parent: Node, child: Node) -> None:
        partial[parent] = partial.pop(child)

    return rename
