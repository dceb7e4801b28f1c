"""The second world is given up as soon as the first one breaks, and leaves no task behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from multiworld.errors import JoinTimeoutError, WorldBrokenError
from multiworld.remote.joining import join_beside, join_shared
from multiworld.world.manager import WorldManager
from multiworld.world.world import World

LOST = WorldBrokenError("first", 0, 0, "the peer died")


class First:
    """``breaks``: set when it breaks."""

    def __init__(self) -> None:
        self.breaks = asyncio.Event()

    async def wait_broken(self) -> WorldBrokenError:
        await self.breaks.wait()
        return LOST


async def never(began: asyncio.Event, cancelled: list[bool]) -> World:
    began.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(True)
        raise
    raise AssertionError


async def test_a_peer_that_dies_between_both_ends_the_join_at_once() -> None:
    first, began, cancelled = First(), asyncio.Event(), list[bool]()
    joining = asyncio.ensure_future(join_beside(cast("World", first), never(began, cancelled)))
    await began.wait()
    first.breaks.set()
    with pytest.raises(WorldBrokenError, match="the peer died"):
        await joining
    assert cancelled == [True]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_second_world_is_returned_and_its_error_raised() -> None:
    second = cast("World", object())

    async def join() -> World:
        return second

    async def fail() -> World:
        raise JoinTimeoutError("second", "nobody came")

    assert await join_beside(cast("World", First()), join()) is second
    with pytest.raises(JoinTimeoutError):
        await join_beside(cast("World", First()), fail())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_manager_does_not_warn_of_the_loss_of_a_shared_world() -> None:
    class Manager:
        async def join(self, name: str, **asked: object) -> SimpleNamespace:
            return SimpleNamespace(name=name, is_inner=False, **asked)

    world = await join_shared(cast("WorldManager", Manager()), "remote-3", 1, None, "auto", 5.0)
    assert world.is_inner
    assert (world.name, world.rank, world.world_size) == ("remote-3", 1, 2)
