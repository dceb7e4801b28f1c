"""One of the two processes that say how much memory their worlds hold. Linux: from ``/proc/self``."""

from __future__ import annotations

import importlib
import itertools
import threading

import torch

import multiworld as mw

from ..process.facts import proportional_bytes
from ..testing import trim
from .known_data import fill, holds, spoil
from .member import Member

ITEM_BYTES = 4
WARM_UP = "tcp"  # not what is measured: that would keep some of what it takes
SHM = "multiworld.channel.shm"
DEFAULT_BUFFER_BYTES = 4 << 20
HOLDS = ("Pss_Anon", "Pss_Shmem")  # not files: whether others run the same libraries is not about this process
SAMPLE_EVERY_S = 0.0005


def held_bytes() -> int:
    """Return anonymous and shared memory, of what k processes share the k-th part: their sum counts everything once."""
    return proportional_bytes(*HOLDS)


class Peak:
    """Look at ``held_bytes`` over and over, from a thread, while the ``with`` block runs."""

    def __init__(self) -> None:
        self._first = self._most = 0
        self._looked, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="bench-peak", daemon=True)

    @property
    def growth_bytes(self) -> int:
        """The most beyond what was held as the block began."""
        return self._most - self._first

    def __enter__(self) -> Peak:
        self._thread.start()
        self._looked.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        held_bytes()  # what looking itself takes is there before it counts
        self._first = self._most = held_bytes()
        self._looked.set()
        while not self._stop.wait(SAMPLE_EVERY_S):
            self._most = max(self._most, held_bytes())
        self._most = max(self._most, held_bytes())


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
