"""How a channel behaves beside others: it counts right, sleeps when idle, and keeps worlds apart."""

from __future__ import annotations

import asyncio
import resource
import time

import torch

import multiworld as mw

from ...deadlines import scaled
from ...tasks import together
from ..catalogue import PAIR, SEVERAL, by_members
from ..stage import Stage

NUM_WORLDS = 6
OWN_MESSAGES, OWN_BYTES = 8, 64 * 1024  # what a channel may say to itself meanwhile
IDLE_S = 0.4
MAX_WAKEUPS = 300  # per second, those of the links between the members among them
MAX_SHARE = 0.1  # of a core


@by_members(sizes=PAIR)
async def statistics_count(stage: Stage) -> None:
    """statistics() counts messages, bytes and collectives, and says what waits at the moment."""
    world, peer = await stage.join(), 1 - stage.rank
    sizes = (0, *(500,) * 30, 100_000, 3_000_000)
    for number, numel in enumerate(sizes):
        target = stage.full(numel, 0)
        await together(world.send(stage.full(numel, 1), peer, number), world.recv(target, peer, number))
    await stage.meet()
    counts, num_bytes = world.statistics().channel, 4 * sum(sizes)
    for name, count, expected, own in (
        ("messages_sent", counts.messages_sent, len(sizes), OWN_MESSAGES),
        ("messages_received", counts.messages_received, len(sizes), OWN_MESSAGES),
        ("bytes_sent", counts.bytes_sent, num_bytes, OWN_BYTES),
        ("bytes_received", counts.bytes_received, num_bytes, OWN_BYTES),
        ("collectives", counts.collectives, 0, 0),
    ):
        what = f"after {len(sizes)} messages each way, of {num_bytes} bytes in all, {name} is {count}"
        stage.check(expected <= count <= expected + own, what)
    receiving = asyncio.ensure_future(world.recv(stage.full(3, 0), peer, 50))
    await asyncio.sleep(0)
    await stage.meet()
    await _until(stage, world, "receives_waiting", 1, "a receive without a message waits")
    await stage.meet()
    await world.send(stage.full(3, 0), peer, 50)
    await receiving
    await world.send(stage.full(3, 0), peer, 51)
    await _until(stage, world, "messages_waiting", 1, "a message without a receive waits")
    await stage.meet()
    await world.recv(stage.full(3, 0), peer, 51)
    for _ in range(3):
        await world.barrier()
    stage.check(world.statistics().channel.collectives == 3, "collectives is not 3 after 3 barriers")
    for name in ("receives_waiting", "messages_waiting", "sends_waiting"):
        await _until(stage, world, name, 0, "nothing waits")


async def _until(stage: Stage, world: mw.World, name: str, value: int, what: str) -> None:
    end = time.monotonic() + scaled(3.0)
    while (found := getattr(world.statistics().channel, name)) != value:
        stage.check(time.monotonic() < end, f"{name} is {found} where {what}, so {value} was expected")
        await asyncio.sleep(0.005)


@by_members(sizes=SEVERAL)
async def an_idle_channel_sleeps(stage: Stage) -> None:
    """A world in which nothing happens, or in which operations wait, takes no processor time to speak of."""
    world = await stage.join()
    target = stage.full(1000, 0)
    await world.all_reduce(target)
    for waiting in (False, True):
        tasks = [asyncio.ensure_future(world.recv(stage.full(2, 0), src, 7)) for src in stage.others if waiting]
        await stage.meet()
        await asyncio.sleep(0.05)  # spinning for a moment is allowed
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.monotonic()
        await asyncio.sleep(IDLE_S)
        took_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        wakeups = after.ru_nvcsw - before.ru_nvcsw
        what = "while receives wait" if waiting else "while nothing happens"
        stage.check(cpu_s < MAX_SHARE * took_s, f"{what}, the process computes {cpu_s / took_s:.0%} of the time")
        stage.check(
            wakeups < MAX_WAKEUPS * took_s, f"{what}, the process wakes up {wakeups / took_s:.0f} times a second"
        )
        await stage.meet()
        await together(*(world.send(stage.full(2, 0), dst, 7) for dst in stage.others if waiting))
        await asyncio.gather(*tasks)


@by_members(sizes=SEVERAL)
async def worlds_do_not_mix(stage: Stage) -> None:
    """Several worlds of the same members, at once and with the same tags, each have their own messages; one that is
    given up disturbs none of the others.
    """
    worlds = [await stage.join(f"w{number}") for number in range(NUM_WORLDS)]
    after, before = (stage.rank + 1) % stage.size, (stage.rank - 1) % stage.size
    await stage.meet()

    async def use(number: int) -> None:
        world = worlds[number]
        for step in range(12):
            numel, value = (1, 3000, 200_000)[step % 3], number * 100 + step
            received, reduced = stage.full(numel, -1), torch.full((numel,), float(value), device=stage.device)
            await together(
                world.send(stage.full(numel, value), after), world.recv(received, before), world.all_reduce(reduced)
            )
            stage.check_full(received, value, f"recv in world {number} of {NUM_WORLDS} at once")
            stage.check_full(reduced, value * stage.size, f"all_reduce in world {number} of {NUM_WORLDS} at once")

    async def give_up(world: mw.World) -> None:
        await asyncio.sleep(0.005)
        world.abort()

    *kept, given_up = range(NUM_WORLDS)
    ending = give_up(worlds[given_up]) if stage.rank == 0 else worlds[given_up].wait_broken()
    await together(*(use(number) for number in kept), ending)
