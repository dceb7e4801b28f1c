"""One of the two processes that ``bench scale`` puts into hundreds of worlds; it says what they cost it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import torch
import torch.distributed as dist

import multiworld as mw

from ..process.facts import processor_time_s
from ..testing import measure, trim
from .member import Member
from .samples import RAW

AT_A_TIME = 16
LARGE_NUMEL = 2_500_000  # 10 MB
SETTLE_S = 6.0  # threads that have nothing to do end after 5 s


class ScaleMember(Member):
    """Holds all the worlds (or raw Gloo groups) and the receives pending in them."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._worlds: list[mw.World] = []
        self._groups: list[dist.ProcessGroup] = []
        self._receives: list[asyncio.Task[None]] = []

    async def form(self, lane: str, first: int, count: int) -> float:
        """Form worlds ``first`` to ``first + count`` and use each once; return the seconds that took."""
        began = time.monotonic()
        if lane == RAW:
            for number in range(first, first + count):
                self._groups.append(self.form_gloo(f"scale-{number}"))
                self._groups[-1].barrier().wait()
        else:
            for start in range(first, first + count, AT_A_TIME):
                numbers = range(start, min(start + AT_A_TIME, first + count))
                self._worlds += await asyncio.gather(*(self._form_one(lane, number) for number in numbers))
        return time.monotonic() - began

    async def _form_one(self, backend: str, number: int) -> mw.World:
        world = await self.form_world(f"scale-{number}", backend)
        await world.barrier()
        return world

    async def send_large(self, first: int) -> None:
        """Send in each world from ``first`` on, both ways, what goes over the library that the channel is named after.

        Twice: the first of them lets that connect.
        """
        peer = 1 - self.rank
        sent, received = torch.ones(LARGE_NUMEL), torch.empty(LARGE_NUMEL)
        for _ in range(2):
            for world in self._worlds[first:]:
                await asyncio.gather(world.recv(received, peer), world.send(sent, peer))
        await asyncio.sleep(SETTLE_S)

    async def held(self) -> dict[str, Any]:
        """Return what this process holds now, its children's memory not counted."""
        trim()
        now = measure()
        return {"threads": now.threads, "descriptors": now.num_descriptors, "resident_bytes": now.resident_bytes}

    async def idle(self, seconds: float) -> float:
        """Do nothing for so long; return the share of one core that this process and its children used meanwhile."""
        used_s, began = _used_s(), time.monotonic()
        await asyncio.sleep(seconds)
        return (_used_s() - used_s) / (time.monotonic() - began)

    async def post(self, count: int) -> None:
        """Leave ``count`` receives pending, spread over all worlds."""
        peer = 1 - self.rank
        for number in range(count):
            world = self._worlds[number % len(self._worlds)]
            self._receives.append(asyncio.create_task(world.recv(torch.zeros(1), peer)))
        await asyncio.sleep(0)

    async def complete(self, count: int) -> None:
        """Rank 1 sends what the receives of rank 0 wait for; rank 0 has them all in the end."""
        if self.rank == 1:
            for number in range(count):
                await self._worlds[number % len(self._worlds)].send(torch.zeros(1), 0)
        await asyncio.gather(*self._receives)
        self._receives.clear()


def _used_s() -> float:
    return time.process_time() + sum(map(processor_time_s, measure().children))
