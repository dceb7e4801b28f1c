"""One of the two processes that say how much memory their worlds hold."""

from __future__ import annotations

import importlib
import itertools

import torch

import multiworld as mw

from ..testing import trim
from .held import Peak, held_bytes
from .known_data import fill, holds, spoil
from .member import Member

__all__ = ["MemoryMember"]

ITEM_BYTES = 4
WARM_UP = "tcp"  # not what is measured: that would keep some of what it takes
SHM = "multiworld.channel.shm"
DEFAULT_BUFFER_BYTES = 4 << 20


class MemoryMember(Member):
    """Holds the worlds, and one tensor that goes there and back."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._numbers = itertools.count(1)
        self._tensor = torch.empty(0)
        self._unused: list[mw.World] = []

    async def allocate(self, size_bytes: int) -> None:
        self._tensor = torch.empty(size_bytes // ITEM_BYTES)
        fill(self._tensor)

    async def form(self, backend: str, count: int) -> None:
        """Form further worlds."""
        for _ in range(count):
            self._unused.append(await self.form_world(f"memory-{next(self._numbers)}", backend))

    async def use(self) -> None:
        """Send the tensor once each way in every world that is not used yet."""
        for world in self._unused:
            await self._move(world, sender=0)
            await self._move(world, sender=1)
        self._unused.clear()

    async def held(self) -> int:
        trim()
        return held_bytes()

    async def move(self, backend: str, count: int) -> int:
        """Form a world and send the tensor ``count`` times from rank 0; return the most bytes that this took here."""
        await self.form(WARM_UP, 1)  # for what any first world and transfer of a process takes
        await self.use()
        trim()
        with Peak() as peak:
            world = await self.form_world("memory-moving", backend)
            for _ in range(count):
                await self._move(world, sender=0)
        return peak.growth_bytes

    async def buffer_bytes(self) -> int:
        """Return the size of the buffer through which the shared-memory channel moves a tensor chunk by chunk."""
        try:
            size: int = importlib.import_module(SHM).BUFFER_BYTES
        except ModuleNotFoundError:
            size = DEFAULT_BUFFER_BYTES
        return size

    async def _move(self, world: mw.World, sender: int) -> None:
        if self.rank == sender:
            await world.send(self._tensor, 1 - self.rank)
            return
        spoil(self._tensor)
        await world.recv(self._tensor, sender)
        if not holds(self._tensor):
            raise AssertionError(f"{world!r} delivered something other than what was sent")
