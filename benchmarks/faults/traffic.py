"""Programs for pairs of workers: much traffic whose every result they check, and worlds that come and go."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import torch

import multiworld as mw
from multiworld.testing.deadlines import Deadline
from multiworld.testing.processes import Worker
from multiworld.testing.resources import Resources, measure
from multiworld.testing.rounds import KINDS, WrongResultError, contribution, play_round
from multiworld.testing.worker import next_command, report
from multiworld.testing.worker_group import WorkerGroup

__all__ = ["cycle", "give_up", "order", "start_pair"]

GIVEN_UP_NUMELS = (1, 1000, 20_000, 300_000)
GIVE_UP_WITHIN_S = 0.002
LATE_S = 0.02  # by then a rank that gives up has done so, on a machine however fast


def start_pair(workers: WorkerGroup, program: Callable[..., Any], **options: Any) -> list[Worker]:
    """Start one of the others in two workers, and tell the second where the first one's store is."""
    pair = [workers.start(program, rank=rank, name=f"rank{rank}", **options) for rank in range(2)]
    pair[1].command("join", url=pair[0].await_event("store", 60)["url"])
    return pair


async def _joined(manager: mw.WorldManager, rank: int, backend: str) -> tuple[mw.World, str]:
    """Join world ``w`` of two; rank 0 serves the store and tells the parent, which tells rank 1."""
    if rank == 0:
        store = manager.serve_store("tcp://127.0.0.1:0")
        report("store", url=store)
    else:
        store = (await next_command())["url"]
    return await manager.join("w", rank=rank, world_size=2, store=store, backend=backend, timeout_s=60), store


async def _in_parallel(count: int, concurrency: int, operation: Callable[[int], Awaitable[None]]) -> None:
    """Issue ``operation(0..count-1)`` in this order, ``concurrency`` of them pending at any time."""
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:  # shared by all lanes, and taken and issued without a pause in between
            await operation(number)

    await asyncio.gather(*(lane() for _ in range(concurrency)))


async def order(rank: int, backend: str, count: int, concurrency: int) -> dict[str, int]:
    """Send, receive and reduce ``count`` times each, all three at the same time; return how many were wrong."""
    wrong = {"received": 0, "reduced": 0}
    async with mw.WorldManager() as manager:
        world, _ = await _joined(manager, rank, backend)
        peer = 1 - rank

        async def send(number: int) -> None:
            await world.send(torch.tensor([number]), peer)

        async def receive(number: int) -> None:
            tensor = torch.tensor([-1])
            await world.recv(tensor, peer)
            wrong["received"] += tensor.item() != number

        async def reduce(number: int) -> None:
            tensor = torch.tensor([number * 3 + rank])
            await world.all_reduce(tensor)
            wrong["reduced"] += tensor.item() != number * 6 + 1

        await asyncio.gather(*(_in_parallel(count, concurrency, work) for work in (send, receive, reduce)))
        await world.barrier()
    return wrong


async def give_up(rank: int, backend: str, count: int, seed: int) -> dict[str, int]:
    """Call ``count`` collectives, of which one rank or the other gives a third up after a random moment.

    The other one comes late to half of those. Return how many were right, given up here, and refused because the peer
    gave them up; raise ``WrongResultError`` for a wrong one.
    """
    ends = {"right": 0, "given up": 0, "refused": 0}
    common, own = random.Random(seed), random.Random(seed + 1 + rank)
    async with mw.WorldManager() as manager:
        world, _ = await _joined(manager, rank, backend)
        await world.barrier()
        for number in range(count):
            kind, numel = common.choice(sorted(KINDS)), common.choice(GIVEN_UP_NUMELS)
            who, others_are_late, blocks = common.randrange(6), common.random() < 0.5, own.random() < 0.3
            limit_s = own.uniform(0, GIVE_UP_WITHIN_S) if who == rank else None
            if who == 1 - rank and others_are_late:
                await asyncio.sleep(LATE_S)
            call = _reduce_blocking(world, number, numel, limit_s) if blocks and kind == "all_reduce" else None
            try:
                await (call or asyncio.wait_for(play_round(world, kind, number, numel), limit_s))
            except (TimeoutError, asyncio.TimeoutError, mw.OperationTimeoutError):
                ends["given up"] += 1
            except mw.CollectiveMismatchError:
                ends["refused"] += 1
            else:
                ends["right"] += 1
        await world.barrier()
    return ends


async def _reduce_blocking(world: mw.World, number: int, numel: int, limit_s: float | None) -> None:
    """Take part in a round of all_reduce on a thread that blocks."""
    tensor = torch.full((numel,), contribution(number, world.rank))
    await asyncio.to_thread(world.blocking.all_reduce, tensor, timeout_s=limit_s)
    expected = sum(contribution(number, each) for each in range(world.world_size))
    if not bool((tensor == expected).all()):
        raise WrongResultError("all_reduce", number, expected, str(tensor))


async def cycle(rank: int, backend: str, count: int, warm_up: int) -> dict[str, Any]:
    """Join, use, and leave or break one name ``count`` times; report what this process held before and after.

    The garbage collector rests meanwhile: ``worlds`` counts those that ended and have not gone without it.
    """
    async with mw.WorldManager() as manager:
        world, store = await _joined(manager, rank, backend)
        before = None
        for number in itertools.count():
            await _use(world, rank)
            if number == warm_up:
                before = measure()
                gc.disable()
                await world.barrier()  # the other side may leave only when this one has measured
            if number == warm_up + count:
                break
            world = await _next(manager, world, store, rank, number)
        assert before is not None
        after = await _back_to(before)
        gc.enable()
        worlds = sum(issubclass(type(each), mw.World) for each in gc.get_objects()) - 1
        report("measured", before=asdict(before), after=asdict(after), worlds=worlds)
        await world.barrier()
    return {}


async def _back_to(before: Resources, timeout_s: float = 5.0) -> Resources:
    """Measure until no more is held than before, for a few seconds: closing takes its moment."""
    deadline = Deadline(timeout_s)
    while True:
        seen = measure()
        held = seen.threads <= before.threads and seen.num_descriptors <= before.num_descriptors
        if held or deadline.expired:
            return seen
        await asyncio.sleep(0.05)


async def _use(world: mw.World, rank: int) -> None:
    tensor = torch.full((100,), float(rank + 1))
    await world.all_reduce(tensor)
    assert bool((tensor == 3).all())


async def _next(manager: mw.WorldManager, world: mw.World, store: str, rank: int, number: int) -> mw.World:
    """Leave and join again, or let one side break the world, with a receive pending, and rejoin."""
    if number % 2 == 0:
        await world.leave()
        return await manager.join("w", rank=rank, world_size=2, store=store, backend=world.backend, timeout_s=60)
    if number // 2 % 2 == rank:
        await world.recv(torch.zeros(1), 1 - rank)  # once the other side is done with what came before
        world.abort()
        return await manager.join("w", rank=rank, world_size=2, store=store, backend=world.backend, timeout_s=60)
    try:
        await world.send(torch.ones(1), 1 - rank)
        await world.recv(torch.zeros(1), 1 - rank)
    except mw.WorldBrokenError:
        return await manager.rejoin("w", timeout_s=60)
    raise AssertionError("the receive had to fail, as the other side gave up the world")
