"""Programs that a launcher starts: all they know of their job comes from it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import torch

import multiworld as mw
from multiworld import elastic
from multiworld.testing.worker import report

_kept: list[Any] = []


async def work_in_whatever_world_there_is() -> None:
    """Be in the job's world, as whatever rank, and form it again when it breaks or the membership changes."""
    async with mw.WorldManager() as manager:
        world = await manager.join("w")
        while True:
            total = torch.ones(1)
            await world.all_reduce(total)
            report("works", rank=world.rank, world_size=world.world_size, generation=world.generation, total=int(total))
            error = await world.wait_broken()
            report("broken", cause=type(error).__name__)
            world = await manager.rejoin("w")


def fork_and_forget() -> None:
    """Parent and child are the same worker, each with what it opened itself; neither cleans up."""
    elastic.progress()
    manager = mw.WorldManager()
    _kept.append(manager)
    world = manager.blocking.join("w")
    child = os.fork()
    if child == 0:
        place = elastic.place()
        own = mw.WorldManager()
        assert place is not None
        own.blocking.join("child", place.rank, place.world_size)
        elastic.progress()
        own.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    report("child ended", status=status)
    asyncio.run(world.all_reduce(torch.ones(1)))
    report("goes on", rank=world.rank)
