"""The ways to use a group that are compared, behind one interface, and a member that has all of them open."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

import multiworld as mw

from ..world.world import World
from .collective_calls import GLOO_CALLS, Tensors, call
from .member import Member
from .samples import RAW, lane_names

UNKNOWN = {(RAW, "reduce")}  # it computes in the other ranks' tensors, so those give something else the next time


class Lane(Protocol):
    """One rank of a group. In a pair rank 0 leads: it streams to rank 1, and begins each round trip."""

    async def stream(self, buffers: Sequence[Tensor], count: int) -> None:
        """Move ``count`` messages one way, ``len(buffers)`` of them under way at any time."""

    async def echo(self, tensor: Tensor, count: int) -> list[float]:
        """Make ``count`` round trips; return how long each took, in seconds."""

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        """Call a collective ``count`` times; return the seconds of one, all ranks' last included."""


class Waitable(Protocol):
    def wait(self) -> object: ...


class GlooLane:
    """Raw Gloo. Its calls block, so they block the event loop; nothing else runs on that meanwhile."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._leads, self._peer = group, group.rank() == 0, 1 - group.rank()

    async def stream(self, buffers: Sequence[Tensor], count: int) -> None:
        issue = self._group.send if self._leads else self._group.recv
        _stream_blocking(lambda buffer: issue([buffer], self._peer, 0), buffers, count)

    async def echo(self, tensor: Tensor, count: int) -> list[float]:
        first, second = (self._group.send, self._group.recv) if self._leads else (self._group.recv, self._group.send)
        tensors = [tensor]
        return _echo_blocking(
            lambda: first(tensors, self._peer, 0).wait(), lambda: second(tensors, self._peer, 0).wait(), count
        )

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        group, issue = self._group, GLOO_CALLS[kind]
        return _repeat_blocking(lambda: issue(group, tensors).wait(), lambda: group.barrier().wait(), count)


class BlockingLane:
    """A world's blocking API, as raw Gloo is used: one thread, with as many requests under way as there are buffers."""

    def __init__(self, world: World) -> None:
        self._world, self._leads, self._peer = world, world.rank == 0, 1 - world.rank

    async def stream(self, buffers: Sequence[Tensor], count: int) -> None:
        issue = self._world.blocking.isend if self._leads else self._world.blocking.irecv
        _stream_blocking(lambda buffer: issue(buffer, self._peer), buffers, count)

    async def echo(self, tensor: Tensor, count: int) -> list[float]:
        api = self._world.blocking
        first, second = (api.send, api.recv) if self._leads else (api.recv, api.send)
        return _echo_blocking(lambda: first(tensor, self._peer), lambda: second(tensor, self._peer), count)

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        api = self._world.blocking
        return _repeat_blocking(lambda: call(api, kind, tensors), api.barrier, count)


class AsyncLane:
    """A world's asyncio API, as many tasks as there are buffers."""

    def __init__(self, world: World) -> None:
        self._world, self._leads, self._peer = world, world.rank == 0, 1 - world.rank

    async def stream(self, buffers: Sequence[Tensor], count: int) -> None:
        shares = _shares(count, len(buffers))
        await asyncio.gather(*map(self._move, buffers, shares))

    async def echo(self, tensor: Tensor, count: int) -> list[float]:
        first, second = (self._world.send, self._world.recv) if self._leads else (self._world.recv, self._world.send)
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await first(tensor, self._peer)
            await second(tensor, self._peer)
            times.append(time.perf_counter() - began)
        return times

    async def repeat(self, kind: str, tensors: Tensors, count: int) -> float:
        await self._world.barrier()
        began = time.perf_counter()
        for _ in range(count):
            await call(self._world, kind, tensors)
        await self._world.barrier()
        return (time.perf_counter() - began) / count

    async def _move(self, buffer: Tensor, count: int) -> None:
        move = self._world.send if self._leads else self._world.recv
        for _ in range(count):
            await move(buffer, self._peer)


class LaneMember(Member):
    """Holds every lane open, so that slices of each can alternate."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._lanes: dict[str, Lane] = {}

    async def open(self, backends: list[str]) -> None:
        """Open raw Gloo, and the world and its two lanes of each backend."""
        self._lanes[RAW] = GlooLane(self.form_gloo("lanes"))
        for backend in backends:
            world = await self.form_world(f"lanes-{backend}", backend)
            lanes = AsyncLane(world), BlockingLane(world)
            self._lanes.update(zip(lane_names([backend]), lanes, strict=True))


class GroupMember(LaneMember):
    """One rank of a group whose collectives are measured."""

    _tensors: Tensors | None = None

    async def allocate(self, size_bytes: int) -> None:
        """Make the tensors that every lane will use in turn."""
        self._tensors = None  # give the old ones back first
        self._tensors = Tensors.make(size_bytes, self.rank, self.size)

    async def repeat(self, lane: str, kind: str, count: int) -> float:
        """Call a collective ``count`` times; return the seconds of one. Raises if the result is wrong."""
        tensors = self._tensors
        assert tensors is not None
        tensors.prepare(kind)
        took_s = await self._lanes[lane].repeat(kind, tensors, count)
        if (lane, kind) not in UNKNOWN and not tensors.hold(kind, count):
            raise AssertionError(f"{kind}, {lane}: a wrong result on rank {self.rank}")
        return took_s


def _stream_blocking(issue: Callable[[Tensor], Waitable], buffers: Sequence[Tensor], count: int) -> None:
    pending: deque[Waitable] = deque()
    for number in range(count):
        if len(pending) == len(buffers):
            pending.popleft().wait()
        pending.append(issue(buffers[number % len(buffers)]))
    for request in pending:
        request.wait()


def _echo_blocking(first: Callable[[], object], second: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        first()
        second()
        times.append(time.perf_counter() - began)
    return times


def _repeat_blocking(collective: Callable[[], object], barrier: Callable[[], object], count: int) -> float:
    barrier()
    began = time.perf_counter()
    for _ in range(count):
        collective()
    barrier()
    return (time.perf_counter() - began) / count


def _shares(count: int, num_parts: int) -> list[int]:
    return [count // num_parts + (part < count % num_parts) for part in range(num_parts)]
