"""One of the two processes that ``bench join`` lets form worlds, alone and beside another world's traffic."""

from __future__ import annotations

import asyncio
import itertools
import time

import torch

import multiworld as mw

from .lanes import AsyncLane
from .member import Member

ITEM_BYTES = 4
WINDOW = 4
JOIN_AT = 0.05  # of its window, so that all that it costs on both sides falls within


class JoinMember(Member):
    """Forms and leaves worlds of two; ``moment`` pairs are the CLOCK_MONOTONIC seconds before and after."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._numbers = itertools.count(1)
        self._control: mw.World | None = None
        self._traffic: mw.World | None = None
        self._signal = torch.zeros(1)
        self._buffers: list[torch.Tensor] = []

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

    async def stream(self, count: int) -> float:
        """Stream so many tensors from rank 0; return the seconds."""
        assert self._traffic is not None
        lane = AsyncLane(self._traffic)
        await lane.echo(self._signal, 1)
        began = time.monotonic()
        await lane.stream(self._buffers, count)
        await lane.echo(self._signal, 1)
        return time.monotonic() - began

    async def stream_beside_joins(
        self, count: int, num_joins: int, window_s: float, backend: str
    ) -> list[tuple[float, int]]:
        """Stream as above, and form a world in every second window of ``window_s``.

        Both begin at the same moment, and each goes by its own clock: messages about when to join would disturb the
        stream as well. Return, while the stream lasts, the time at the end of each window and how many messages had
        been received by then.
        """
        assert self._traffic is not None
        lane = AsyncLane(self._traffic)
        await lane.echo(self._signal, 1)
        began = time.monotonic()
        counting = asyncio.create_task(self._count(began, 2 * num_joins + 1, window_s))
        joining = asyncio.create_task(self._join_in_turn(began, num_joins, window_s, backend))
        try:
            await lane.stream(self._buffers, count)
            ended = time.monotonic()
            counted, joined = await asyncio.gather(counting, joining)
        finally:
            counting.cancel()
            joining.cancel()
        await asyncio.gather(*(world.leave() for world in joined))
        return [(moment, received) for moment, received in counted if moment < ended]

    async def _count(self, began: float, num_windows: int, window_s: float) -> list[tuple[float, int]]:
        assert self._traffic is not None
        counted = []
        for number in range(num_windows + 1):
            await _sleep_until(began + number * window_s)
            counted.append((time.monotonic(), self._traffic.statistics().channel.messages_received))
        return counted

    async def _join_in_turn(self, began: float, num_joins: int, window_s: float, backend: str) -> list[mw.World]:
        joined = []
        for number in range(num_joins):
            await _sleep_until(began + (2 * number + 1 + JOIN_AT) * window_s)
            joined.append(await self.form_world(f"beside-{next(self._numbers)}", backend))
        return joined

    async def _together(self) -> None:
        assert self._control is not None
        await self._control.barrier()


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
