"""A member of the worlds that ``bench detect`` breaks, as a survivor or as the victim; with a raw Gloo group beside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import multiworld as mw

from . import raw_gloo
from .member import Member


class DetectMember(Member):
    """In one world at a time, ``worlds`` or not. All times are CLOCK_MONOTONIC in seconds."""

    own_store_url = ""
    _world: mw.World | None = None
    _group: dist.ProcessGroup | None = None
    _broken: asyncio.Task[dict[str, Any]] | None = None
    _pending: Sequence[asyncio.Task[float]] = ()
    _raw: asyncio.Task[float | None] | None = None

    async def serve_worlds(self) -> str:
        """Host a store here, which dies with this process; the same one each time."""
        self.own_store_url = self.own_store_url or self.manager.serve_store(f"tcp://{self.address}:0")
        return self.own_store_url

    async def join(self, name: str, rank: int, world_size: int, store_url: str, backend: str, raw: bool) -> None:
        """Join a world and, if ``raw``, a raw Gloo group of the same ranks."""
        if raw:
            self._group = raw_gloo.make_group(self.gloo_store, name, rank, world_size, self.address)
        self._world = await self.manager.join(name, rank, world_size, store_url, backend=backend)
        self._broken = asyncio.create_task(self._watch(self._world))

    async def begin(self, victim: int, others: list[int]) -> None:
        """Leave pending: a receive from each other rank, a collective, and on Gloo a receive from the victim."""
        world = self._world
        assert world is not None
        operations: list[Awaitable[None]] = [world.recv(torch.zeros(1), rank) for rank in (victim, *others)]
        operations.append(world.all_reduce(torch.zeros(1)))
        self._pending = [asyncio.create_task(_failure(operation)) for operation in operations]
        if self._group is not None:
            work = self._group.recv([torch.zeros(1)], victim, 0)
            self._raw = asyncio.create_task(asyncio.to_thread(_raw_failure, work))
        for _ in range(3):
            await asyncio.sleep(0)  # the tasks run up to where they wait

    async def found(self) -> dict[str, Any]:
        """Wait until the world is broken and every pending operation has raised; say when, and with what cause."""
        assert self._broken is not None
        found = await self._broken
        return {**found, "raised_at": [await task for task in self._pending]}

    async def found_raw(self) -> float | None:
        """Wait until Gloo's receive ends: the time of its error, None if it got its tensor in the end."""
        return None if self._raw is None else await self._raw

    async def release_raw(self, others: list[int]) -> None:
        """On the victim: send what Gloo's receives wait for, as those have no other end."""
        assert self._group is not None
        for rank in others:
            self._group.send([torch.zeros(1)], rank, 0).wait()

    async def forget(self) -> None:
        """Give the broken world and the group up."""
        assert self._world is not None
        self._world.abort()
        self._world, self._group, self._broken, self._raw = None, None, None, None
        self._pending = ()

    async def _watch(self, world: mw.World) -> dict[str, Any]:
        error = await world.wait_broken()
        return {"at": time.monotonic(), "cause": type(error).__name__}


async def _failure(operation: Awaitable[None]) -> float:
    try:
        await operation
    except mw.WorldBrokenError:
        return time.monotonic()
    raise AssertionError("an operation succeeded although the peer that it waits for does nothing")


def _raw_failure(work: dist.Work) -> float | None:
    try:
        work.wait()
    except RuntimeError:  # all that Gloo raises
        return time.monotonic()
    return None
