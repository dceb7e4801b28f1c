"""One rank of the group that ``bench collectives`` measures: raw Gloo and a world per backend, open side by side."""

from __future__ import annotations

import time
from functools import partial

import torch.distributed as dist

import multiworld as mw

from .collective_calls import GLOO_CALLS, WORLD_CALLS, Tensors
from .member import Member, obey

__all__ = ["GroupMember", "run"]

RAW = "raw"


async def run(rank: int, size: int) -> None:
    """Be rank ``rank`` of the group; started by ``Team``."""
    await obey(partial(GroupMember, rank=rank, size=size))


class GroupMember(Member):
    """Holds every group open, so that rounds of each can alternate."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._group: dist.ProcessGroup | None = None
        self._worlds: dict[str, mw.World] = {}
        self._tensors: Tensors | None = None

    async def open(self, backends: list[str]) -> None:
        self._group = self.form_gloo("group")
        for backend in backends:
            self._worlds[backend] = await self.form_world(f"group-{backend}", backend)

    async def allocate(self, size_bytes: int) -> None:
        """Make the tensors that every group will use in turn."""
        self._tensors = None  # give the old ones back first
        self._tensors = Tensors.make(size_bytes, self.size)

    async def repeat(self, lane: str, kind: str, count: int) -> float:
        """Call a collective ``count`` times; return the seconds of one, all ranks' last included."""
        assert self._tensors is not None
        if lane == RAW:
            return self._repeat_gloo(kind, count, self._tensors)
        return await self._repeat_world(self._worlds[lane], kind, count, self._tensors)

    def _repeat_gloo(self, kind: str, count: int, tensors: Tensors) -> float:
        group = self._group
        assert group is not None
        call = GLOO_CALLS[kind]
        group.barrier().wait()
        began = time.perf_counter()
        for _ in range(count):
            call(group, tensors).wait()
        group.barrier().wait()
        return (time.perf_counter() - began) / count

    async def _repeat_world(self, world: mw.World, kind: str, count: int, tensors: Tensors) -> float:
        call = WORLD_CALLS[kind]
        await world.barrier()
        began = time.perf_counter()
        for _ in range(count):
            await call(world, tensors)
        await world.barrier()
        return (time.perf_counter() - began) / count
