"""One of the two processes that ``bench join`` lets form worlds, alone and beside another world's traffic."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import torch

import multiworld as mw

from .lanes import AsyncLane
from .member import Member, obey

__all__ = ["JoinMember", "run"]

ITEM_BYTES = 4
WINDOW = 4


async def run(rank: int, size: int) -> None:
    """Be rank ``rank`` of the pair; started by ``Team``."""
    await obey(partial(JoinMember, rank=rank, size=size))


class JoinMember(Member):
    """Forms and leaves worlds of two; ``moment`` pairs are the CLOCK_MONOTONIC seconds before and after."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._numbers = itertools.count(1)
        self._control: mw.World | None = None
        self._traffic: mw.World | None = None
        self._signal = torch.zeros(1)
        self._buffers: list[torch.Tensor] = []
        self._num_begun = 0  # joins beside the stream that is under way
        self._ending = False

    async def open(self, traffic_backend: str, size_bytes: int) -> None:
        """Form the world by which the two start at the same moment, and the one that others' joins may disturb."""
        self._control = await self.form_world("control", "tcp")
        self._traffic = await self.form_world("traffic", traffic_backend)
        self._buffers = [torch.zeros(size_bytes // ITEM_BYTES) for _ in range(WINDOW)]

    async def form_raw(self, count: int) -> list[tuple[float, float]]:
        """Form ``count`` raw Gloo groups, one after the other."""
        moments = []
        for _ in range(count):
            name = f"raw-{next(self._numbers)}"
            await self._together()
            began = time.monotonic()
            group = self.form_gloo(name)
            moments.append((began, time.monotonic()))
            await self._together()
            del group
        return moments

    async def form(self, backend: str, count: int) -> list[tuple[float, float]]:
        """Form ``count`` further worlds between the two, use each once and leave it."""
        moments = []
        for _ in range(count):
            name = f"join-{next(self._numbers)}"
            await self._together()
            began = time.monotonic()
            world = await self.form_world(name, backend)
            moments.append((began, time.monotonic()))
            await world.barrier()
            await world.leave()
        return moments

    async def form_first(self, backend: str, count: int) -> list[tuple[float, float]]:
        """Form worlds as ``form`` does, but each by a new manager: the first between the two, with all it sets up."""
        moments = []
        for _ in range(count):
            name = f"join-{next(self._numbers)}"
            async with mw.WorldManager(job="bench-first") as manager:
                await self._together()
                began = time.monotonic()
                world = await manager.join(name, self.rank, self.size, self.store_url, backend=backend)
                moments.append((began, time.monotonic()))
                await world.barrier()
                await world.leave()
        return moments

    async def stream(self, count: int, joins_per_s: float, backend: str) -> tuple[float, int]:
        """Stream from rank 0 while worlds are formed at this rate (0: none); return the seconds, and how many."""
        assert self._traffic is not None
        lane = AsyncLane(self._traffic)
        await lane.echo(self._signal, 1)
        began = time.monotonic()
        async with self._joining(joins_per_s, backend) as joined:
            await lane.stream(self._buffers, count)
            await lane.echo(self._signal, 1)
            took_s = time.monotonic() - began
            num_joined = len(joined)
        return took_s, num_joined

    @asynccontextmanager
    async def _joining(self, joins_per_s: float, backend: str) -> AsyncIterator[list[mw.World]]:
        """Form worlds until the block ends, and leave them then.

        Both begin the block at the same moment, so each goes by its own clock: messages about when to join would
        disturb the stream as well. Who has begun one more than the other when the block ends is told afterwards.
        """
        joined: list[mw.World] = []
        if not joins_per_s:
            yield joined
            return
        last = asyncio.get_running_loop().create_future()
        self._num_begun, self._ending = 0, False
        joining = asyncio.create_task(self._join_until(last, joins_per_s, backend, joined))
        try:
            yield joined
            self._ending = True
            last.set_result(await self._largest(self._num_begun))
            await joining
            await asyncio.gather(*(world.leave() for world in joined))
        finally:
            joining.cancel()

    async def _join_until(
        self, last: asyncio.Future[int], joins_per_s: float, backend: str, joined: list[mw.World]
    ) -> None:
        began = time.monotonic()
        while True:
            due = began + (self._num_begun + 0.5) / joins_per_s
            await asyncio.wait({last}, timeout=max(0.0, due - time.monotonic()))
            if self._ending and self._num_begun == await last:
                return
            self._num_begun += 1
            joined.append(await self.form_world(f"beside-{next(self._numbers)}", backend))

    async def _largest(self, number: int) -> int:
        assert self._control is not None
        numbers = torch.tensor([number])
        await self._control.all_reduce(numbers, mw.ReduceOp.MAX)
        return int(numbers.item())

    async def _together(self) -> None:
        assert self._control is not None
        await self._control.barrier()
