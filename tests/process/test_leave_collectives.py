"""A rank may leave right after its last collective, or abort the world in one: what the others get of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
import torch

import multiworld as mw
from multiworld.testing import Crew, WorkerGroup, scaled

pytestmark = pytest.mark.usefixtures("no_leaks")

SIZE = 3
LARGE = 1 << 18
NUM_ABORTS = NUM_LEAVES = 25
STREAMED = ["tcp", "shm", "gloo"]


def zeros(num: int = 8) -> torch.Tensor:
    return torch.zeros(num)


def parts(num: int = 8) -> list[torch.Tensor]:
    return [torch.full((num,), float(rank)) for rank in range(SIZE)]


COLLECTIVES: dict[str, Callable[[mw.World], Awaitable[None]]] = {
    "broadcast": lambda world: world.broadcast(zeros(), src=1),
    "large broadcast": lambda world: world.broadcast(zeros(LARGE), src=1),
    "scatter": lambda world: world.scatter(zeros(), parts() if world.rank == 1 else None, src=1),
    "gather": lambda world: world.gather(zeros(), parts() if world.rank == 0 else None, dst=0),
    "reduce": lambda world: world.reduce(zeros(), dst=0),
    "large reduce": lambda world: world.reduce(zeros(LARGE), dst=0),
    "all_reduce": lambda world: world.all_reduce(zeros()),
    "large all_reduce": lambda world: world.all_reduce(zeros(LARGE)),
    "all_gather": lambda world: world.all_gather(parts(), zeros()),
    "barrier": lambda world: world.barrier(),
}


async def form(managers: list[mw.WorldManager], store: str, backend: str = "tcp") -> list[mw.World]:
    joins = (
        manager.join("w", rank=rank, world_size=SIZE, store=store, backend=backend)
        for rank, manager in enumerate(managers)
    )
    return list(await asyncio.gather(*joins))


@pytest.mark.parametrize("kind", COLLECTIVES)
async def test_the_last_collective_succeeds_for_ranks_of_any_lateness(kind: str) -> None:
    """Three managers in one process; each rank leaves as soon as its own part is done."""
    managers = [mw.WorldManager() for _ in range(SIZE)]
    store = managers[0].serve_store("tcp://127.0.0.1:0")

    async def member(world: mw.World, late_s: float) -> None:
        await world.barrier()
        await asyncio.sleep(late_s)
        await COLLECTIVES[kind](world)
        await world.leave()

    try:
        for late_s in ([0, 0, 0], [0.05, 0, 0], [0, 0, 0.05], [0.02, 0, 0.05]):
            await asyncio.gather(*map(member, await form(managers, store), late_s))
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


@pytest.mark.parametrize("backend", STREAMED)
@pytest.mark.parametrize("kind", COLLECTIVES)
async def test_the_last_collective_succeeds_though_the_other_ranks_end_meanwhile(kind: str, backend: str) -> None:
    """A leave breaks the world of whoever stays: it closes, too, while the last rank has not even come."""
    managers = [mw.WorldManager() for _ in range(SIZE)]
    store = managers[0].serve_store("tcp://127.0.0.1:0")

    async def member(world: mw.World, manager: mw.WorldManager, late_s: float) -> None:
        await asyncio.sleep(late_s)
        await COLLECTIVES[kind](world)
        await manager.aclose()

    try:
        worlds = await form(managers, store, backend)
        await asyncio.gather(*map(member, worlds, managers, [0.3, 0.05, 0]))
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


async def test_who_left_first_is_named_by_all_whoever_tells_of_it_first() -> None:
    managers = [mw.WorldManager() for _ in range(SIZE)]
    store = managers[0].serve_store("tcp://127.0.0.1:0")
    try:
        for _ in range(NUM_LEAVES):
            worlds = await form(managers, store)
            await asyncio.gather(worlds[2].leave(), *(broken_by(world, 2) for world in worlds[:2]))
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


async def broken_by(world: mw.World, rank: int) -> None:
    error = await asyncio.wait_for(world.wait_broken(), scaled(5))
    assert isinstance(error, mw.PeerLeftError)
    assert error.rank == rank
    await world.leave()


async def test_a_collective_that_the_leaver_did_not_start_fails_at_once() -> None:
    managers = [mw.WorldManager() for _ in range(SIZE)]
    store = managers[0].serve_store("tcp://127.0.0.1:0")

    async def survive(world: mw.World) -> None:
        await world.barrier()
        started = time.monotonic()
        with pytest.raises(mw.PeerLeftError):
            await world.all_reduce(zeros())
        assert time.monotonic() - started < scaled(1.0)

    async def leave(world: mw.World) -> None:
        await world.barrier()
        await world.leave()

    try:
        worlds = await form(managers, store)
        await asyncio.gather(leave(worlds[1]), survive(worlds[0]), survive(worlds[2]))
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


@pytest.mark.parametrize("backend", ["tcp", "shm"])
def test_a_collective_of_which_a_rank_aborts_the_world_is_broken_not_contradicted(backend: str) -> None:
    """In many worlds, as it is a matter of what reaches the other one first."""
    with WorkerGroup() as workers:
        crew = Crew(workers, SIZE)
        for number in range(NUM_ABORTS):
            world = f"w{number}"
            crew.form(world, backend=backend)
            aborting, waiting = (
                crew[rank].call("collective", world=world, kind="all_reduce").started() for rank in (1, 2)
            )
            crew[1].do("abort", world=world)
            assert aborting.failure().error == "WorldClosedError"
            outcome = waiting.failure()
            assert outcome.error == "WorldBrokenError", outcome.message
            assert outcome.fields is not None
            assert outcome.fields["rank"] == 1
