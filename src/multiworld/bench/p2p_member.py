"""One end of the pair that ``bench p2p`` measures: raw Gloo and our worlds, open side by side."""

from __future__ import annotations

import time
from functools import partial
from statistics import median

import torch
from torch import Tensor

import multiworld as mw

from .lanes import AsyncLane, BlockingLane, GlooLane, Lane
from .member import Member, obey

__all__ = ["PairMember", "run"]

ITEM_BYTES = 4


async def run(rank: int, size: int) -> None:
    """Be rank ``rank`` of the pair; started by ``Team``."""
    await obey(partial(PairMember, rank=rank, size=size))


class PairMember(Member):
    """Holds every lane open, so that rounds of each can alternate."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._lanes: dict[str, Lane] = {}
        self._signal = torch.zeros(1)
        self._buffers: list[Tensor] = []

    async def open(self, backends: list[str]) -> None:
        """Open raw Gloo, and the world and its two lanes of each backend."""
        self._lanes["raw"] = GlooLane(self.form_gloo("pair"))
        for backend in backends:
            world = await self.form_world(f"pair-{backend}", backend)
            self._lanes[f"{backend}, asyncio"] = AsyncLane(world)
            self._lanes[f"{backend}, blocking"] = BlockingLane(world)

    async def allocate(self, size_bytes: int, window: int) -> None:
        """Make the buffers that every lane will use in turn."""
        value = 1.0 if self.rank == 0 else 0.0
        self._buffers = []  # give the old ones back first
        self._buffers = [torch.full((size_bytes // ITEM_BYTES,), value) for _ in range(window)]

    async def stream(self, lane: str, count: int) -> float:
        """Stream from rank 0; return the seconds until rank 1 had everything. Raises if that is not what was sent."""
        chosen = self._lanes[lane]
        if self.rank == 1:
            for buffer in self._buffers:
                buffer[0] = buffer[-1] = -1.0
        await chosen.echo(self._signal, 1)  # both are here
        began = time.perf_counter()
        await chosen.stream(self._buffers, count)
        await chosen.echo(self._signal, 1)
        took_s = time.perf_counter() - began
        if any(buffer[0] != 1.0 or buffer[-1] != 1.0 for buffer in self._buffers[:count]):
            raise AssertionError(f"{lane} delivered something other than what was sent")
        return took_s

    async def echo(self, lane: str, size_bytes: int, count: int) -> list[float]:
        """Make round trips; return their median and 99th percentile in seconds."""
        tensor = torch.zeros(size_bytes // ITEM_BYTES)
        times = sorted(await self._lanes[lane].echo(tensor, count))
        return [median(times), times[len(times) * 99 // 100]]
