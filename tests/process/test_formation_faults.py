"""Worlds that are being formed while members vanish: whoever is left forms the next generation, in time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from dataclasses import replace

import pytest

import multiworld as mw
from multiworld.store.base import Store
from multiworld.testing import scaled
from multiworld.wire.progress.operation import drive
from multiworld.wire.progress.waiting import wait_async
from multiworld.world.links.peers import PeerInfo

pytestmark = pytest.mark.usefixtures("no_leaks")


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def between(low: str, high: str) -> str:
    """Return an id of the form of a manager's that sorts between two of them: the smaller id is the one that calls."""
    return f"{(int(low, 16) + int(high, 16)) // 2:032x}"


class Ghost:
    """A member that put its record into the store, and died before it answered anybody."""

    def __init__(self, store: Store, ghost_id: str, key: str) -> None:
        self._store, self._key = store, key
        self._info = replace(PeerInfo.of_this_process(ghost_id, "127.0.0.1", unused_port()), pid=2**22 - 1)

    async def appear(self, world_size: int) -> None:
        record = {
            "nonce": os.urandom(8).hex(),
            "world_size": world_size,
            "backend": "tcp",
            "peer": self._info.to_json().decode(),
        }
        await wait_async(self._store.set(self._key, json.dumps(record).encode()))

    async def met(self, generation_key: str, generation: int) -> None:
        """Wait until the others have met it and moved on, and vanish."""
        await wait_async(self._store.wait(["never"], unless=(generation_key, b"%d" % generation)))
        await wait_async(self._store.delete([self._key]))


async def test_members_that_wait_for_the_call_of_a_dead_one_learn_it_from_those_that_called_it() -> None:
    """The caller notices at once, when it has no link yet to the one that waits."""
    async with mw.WorldManager() as host, mw.WorldManager() as one, mw.WorldManager() as two, mw.WorldManager() as late:
        url = host.serve_store("tcp://127.0.0.1:0")
        caller, waiter = sorted((one, two), key=lambda manager: manager._id)
        store = await wait_async(drive(host._stores.client(url, "w", 5.0, lambda error: None)))
        await wait_async(store.set("default/w/generation", b"1"))
        ghost = Ghost(store, between(caller._id, waiter._id), "default/w/1/3/tcp/0")
        await ghost.appear(3)
        joins = [
            asyncio.create_task(manager.join("w", rank, 3, url, backend="tcp", timeout_s=40))
            for rank, manager in ((1, caller), (2, waiter))
        ]
        await ghost.met("default/w/generation", 1)
        joining = asyncio.gather(*joins, late.join("w", 0, 3, url, backend="tcp", timeout_s=40))
        worlds = await asyncio.wait_for(joining, scaled(3))  # well before they would tire of waiting for the call
        assert len({world.generation for world in worlds}) == 1


async def test_joins_that_are_cancelled_at_any_moment_leave_nothing_that_hinders_the_next() -> None:
    """One side gives up at a random moment and tries again at once; the other side just waits."""
    seed = 5
    chance = random.Random(seed)
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        managers = (first, second)
        url = first.serve_store("tcp://127.0.0.1:0")

        def start(rank: int) -> asyncio.Task[mw.World]:
            return asyncio.create_task(managers[rank].join("w", rank, 2, url, backend="tcp", timeout_s=30))

        for number in range(60):
            fickle = number % 2
            tasks = [start(0), start(1)]
            await asyncio.sleep(chance.uniform(0, 0.006))
            tasks[fickle].cancel()
            cancelled = (await asyncio.gather(tasks[fickle], return_exceptions=True))[0]
            if not isinstance(cancelled, mw.World):
                again, waiting = start(fickle), tasks[1 - fickle]
                await asyncio.wait_for(meet(managers[1 - fickle], waiting, again), scaled(5))
            else:
                await tasks[1 - fickle]
            assert [manager.worlds["w"].state for manager in managers] == [mw.WorldState.ACTIVE] * 2, f"seed {seed}"
            for manager in managers:
                manager.worlds["w"].abort()


async def meet(manager: mw.WorldManager, waiting: asyncio.Task[mw.World], again: asyncio.Task[mw.World]) -> None:
    """Wait until both have joined. Whoever formed a world with the one that gave up rejoins when it breaks."""
    world = await waiting
    broken = asyncio.create_task(world.wait_broken())
    await asyncio.wait([broken, again], return_when=asyncio.FIRST_COMPLETED)
    if not again.done():
        await asyncio.gather(manager.rejoin("w"), again)
    broken.cancel()
    await asyncio.gather(broken, again, return_exceptions=True)
