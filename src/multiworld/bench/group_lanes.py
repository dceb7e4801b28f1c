"""The ways to call collectives that are compared, behind one interface, each as a program would use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch.distributed as dist

from ..world.world import World
from .collective_calls import GLOO_CALLS, Tensors, call

__all__ = ["AsyncGroupLane", "BlockingGroupLane", "GlooGroupLane", "GroupLane"]


class GroupLane(Protocol):
    """One rank of a group."""

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        """Call a collective ``count`` times; return the seconds of one, all ranks' last included."""


class GlooGroupLane:
    """Raw Gloo. Its calls block, so they block the event loop; nothing else runs on that meanwhile."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        group, issue = self._group, GLOO_CALLS[kind]
        return _repeat_blocking(lambda: issue(group, tensors).wait(), lambda: group.barrier().wait(), count)


class BlockingGroupLane:
    """A world's blocking API."""

    def __init__(self, world: World) -> None:
        self._api = world.blocking

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        return _repeat_blocking(lambda: call(self._api, kind, tensors), self._api.barrier, count)


class AsyncGroupLane:
    """A world's asyncio API."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        await self._world.barrier()
        began = time.perf_counter()
        for _ in range(count):
            await call(self._world, kind, tensors)
        await self._world.barrier()
        return (time.perf_counter() - began) / count


def _repeat_blocking(collective: Callable[[], object], barrier: Callable[[], object], count: int) -> float:
    barrier()
    began = time.perf_counter()
    for _ in range(count):
        collective()
    barrier()
    return (time.perf_counter() - began) / count
