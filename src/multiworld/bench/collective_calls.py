"""Every collective once for raw Gloo and once for a world, on the same tensors, so that their times compare."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..world.world import World

__all__ = ["GLOO_CALLS", "WORLD_CALLS", "Tensors"]

ITEM_BYTES = 4
ROOT = 0


@dataclass(frozen=True)
class Tensors:
    """What one rank gives to and gets from a collective: ``mine`` [numel], ``inputs`` and ``outputs`` world_size of it.

    Zeros: reducing them in place over and over stays finite.
    """

    mine: Tensor
    inputs: list[Tensor]
    outputs: list[Tensor]

    @classmethod
    def make(cls, size_bytes: int, world_size: int) -> Tensors:
        numel = size_bytes // ITEM_BYTES
        return cls(
            torch.zeros(numel),
            [torch.zeros(numel) for _ in range(world_size)],
            [torch.zeros(numel) for _ in range(world_size)],
        )


def _gloo_gather(group: dist.ProcessGroup, tensors: Tensors) -> dist.Work:
    options = dist.GatherOptions()
    options.rootRank = ROOT
    return group.gather([tensors.outputs] if group.rank() == ROOT else [], [tensors.mine], options)


def _gloo_scatter(group: dist.ProcessGroup, tensors: Tensors) -> dist.Work:
    options = dist.ScatterOptions()
    options.rootRank = ROOT
    return group.scatter([tensors.mine], [tensors.inputs] if group.rank() == ROOT else [], options)


def _gloo_broadcast(group: dist.ProcessGroup, tensors: Tensors) -> dist.Work:
    options = dist.BroadcastOptions()
    options.rootRank = ROOT
    return group.broadcast([tensors.mine], options)


def _gloo_reduce(group: dist.ProcessGroup, tensors: Tensors) -> dist.Work:
    options = dist.ReduceOptions()
    options.rootRank = ROOT
    return group.reduce([tensors.mine], options)


GLOO_CALLS: Mapping[str, Callable[[dist.ProcessGroup, Tensors], dist.Work]] = {
    "broadcast": _gloo_broadcast,
    "all_reduce": lambda group, tensors: group.allreduce([tensors.mine]),
    "reduce": _gloo_reduce,
    "all_gather": lambda group, tensors: group.allgather([tensors.outputs], [tensors.mine]),
    "gather": _gloo_gather,
    "scatter": _gloo_scatter,
    "reduce_scatter": lambda group, tensors: group.reduce_scatter([tensors.mine], [tensors.inputs]),
    "all_to_all": lambda group, tensors: group.alltoall(tensors.outputs, tensors.inputs),
    "barrier": lambda group, tensors: group.barrier(),
}


def _gather(world: World, tensors: Tensors) -> Awaitable[None]:
    return world.gather(tensors.mine, tensors.outputs if world.rank == ROOT else None, ROOT)


def _scatter(world: World, tensors: Tensors) -> Awaitable[None]:
    return world.scatter(tensors.mine, tensors.inputs if world.rank == ROOT else None, ROOT)


WORLD_CALLS: Mapping[str, Callable[[World, Tensors], Awaitable[None]]] = {
    "broadcast": lambda world, tensors: world.broadcast(tensors.mine, ROOT),
    "all_reduce": lambda world, tensors: world.all_reduce(tensors.mine),
    "reduce": lambda world, tensors: world.reduce(tensors.mine, ROOT),
    "all_gather": lambda world, tensors: world.all_gather(tensors.outputs, tensors.mine),
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": lambda world, tensors: world.reduce_scatter(tensors.mine, tensors.inputs),
    "all_to_all": lambda world, tensors: world.all_to_all(tensors.outputs, tensors.inputs),
    "barrier": lambda world, tensors: world.barrier(),
}
