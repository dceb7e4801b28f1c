"""How worlds end: aborted, left, or formed again; everything is given back, and nothing old comes through."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from typing import Any

import multiworld as mw

from ...deadlines import KILL_S, PENDING_S, scaled
from ...resources import LeakError, check_returned_async, measure, trim
from ...tasks import together
from ..catalogue import PAIR, SEVERAL, THREE, by_members
from ..stage import Stage
from .giving_up import LARGE, SENTINEL, Lonely, lonely_operations

NUM_CYCLES = 8
RETURNED_S = 2.0
LATE_S, SENT_NUMEL = 0.5, 2000
CYCLE_NUMEL = 2_500_000  # 10 MB
KEPT_BYTES = 24 << 20  # of eight times 10 MB each way


@by_members(sizes=PAIR)
async def abort_ends_what_is_pending(stage: Stage) -> None:
    """abort returns at once, from any thread and as often as it is called; every pending operation of any kind raises
    within 50 ms, here and on the other ranks.
    """
    for way in ("the event loop", "a thread"):
        world = await stage.join(f"aborted from {way}")
        operations = lonely_operations(stage, world) + _lonely_sends(stage, world)
        if stage.rank == 1:  # without collectives: they would meet those of the other rank
            operations = operations[:3] + operations[-2:]
        ends: dict[int, tuple[float, BaseException | None]] = {}
        pending = [
            asyncio.ensure_future(_note_end(operation.issue(None), ends, number))
            for number, operation in enumerate(operations)
        ]
        await asyncio.sleep(0.02)  # they are on their way
        await stage.meet()
        began = time.monotonic()
        if stage.rank == 0:
            _abort(stage, world, way)
        await asyncio.wait(pending, timeout=KILL_S + PENDING_S)
        for number, operation in enumerate(operations):
            _check_end(stage, operation.name, ends.get(number), began)


def _lonely_sends(stage: Stage, world: mw.World) -> list[Lonely]:
    """Return sends that nobody receives, and that are too large for buffers."""
    large, peer = stage.full(6 * LARGE, 1), 1 - stage.rank
    return [
        Lonely("send", lambda timeout_s: world.send(large, peer, 50, timeout_s)),
        Lonely("send_tensors", lambda timeout_s: world.send_tensors([large, large], peer, 51, timeout_s)),
    ]


def _check_end(stage: Stage, name: str, end: tuple[float, BaseException | None] | None, began: float) -> None:
    kind: type[mw.MultiworldError] = mw.WorldClosedError if stage.rank == 0 else mw.WorldBrokenError
    bound_s = PENDING_S if stage.rank == 0 else KILL_S + PENDING_S
    what = f"a pending {name}, {'after abort' if stage.rank == 0 else 'after another rank aborted,'}"
    if end is None:
        stage.fail(f"{what} had not ended {KILL_S + PENDING_S:g} s later")
    at, error = end
    if error is None and name in ("send", "send_tensors"):
        return  # somebody buffered it
    stage.check(isinstance(error, kind), f"{what} had to raise {kind.__name__}, but ended with {error!r}")
    stage.check(at - began < bound_s, f"{what} ended {at - began:.3f} s later, more than {bound_s:g} s")


def _abort(stage: Stage, world: mw.World, way: str) -> None:
    began = time.monotonic()
    if way == "a thread":
        thread = threading.Thread(target=world.abort, daemon=True)
        thread.start()
        thread.join(scaled(5.0))
        stage.check(not thread.is_alive(), "abort, called by a thread, had not returned 5 s later")
    else:
        world.abort()
    took_s = time.monotonic() - began
    stage.check(took_s < PENDING_S, f"abort blocked for {took_s:.3f} s")
    world.abort()
    channel = world.channel
    if channel is not None:
        channel.abort(mw.WorldClosedError(world.name, world.generation))
    took_s = time.monotonic() - began
    stage.check(took_s < 2 * PENDING_S, f"abort, called again, blocked for {took_s:.3f} s")


async def _note_end(
    operation: Coroutine[Any, Any, Any], ends: dict[int, tuple[float, BaseException | None]], number: int
) -> None:
    error: BaseException | None = None
    try:
        await operation
    except Exception as raised:
        error = raised
    ends[number] = time.monotonic(), error


@by_members(sizes=PAIR)
async def nothing_is_written_after_abort(stage: Stage) -> None:
    """When abort has ended a receive, in the middle of its message too, its tensor is the caller's again."""
    for attempt in range(max(3, stage.role.num_moments // 2)):
        world = await stage.join(f"attempt {attempt}")
        delay_s = stage.chance.uniform(0.0005, 0.008)
        await stage.meet()
        if stage.rank == 1:
            with contextlib.suppress(mw.WorldBrokenError):
                await world.send(stage.full(LARGE, 1), 0)
            await stage.meet()
            continue
        buffer = stage.full(LARGE, -1)
        receiving = asyncio.ensure_future(world.recv(buffer, 1))
        await asyncio.wait([receiving], timeout=delay_s)
        world.abort()
        await asyncio.wait([receiving], timeout=scaled(5.0))
        stage.check(receiving.done(), "a recv had not ended 5 s after abort")
        received = receiving.exception() is None
        if received:
            stage.check_full(buffer, 1, "a recv that was done just before abort")
        buffer.fill_(SENTINEL)
        await stage.meet()
        stage.check_full(buffer, SENTINEL, f"a recv that abort had ended after {delay_s * 1e3:.2f} ms wrote afterwards")


@by_members(sizes=PAIR)
async def everything_is_given_back(stage: Stage) -> None:
    """Worlds that were left or aborted leave no thread, descriptor, child or memory behind."""
    await _use_once(stage, "warm-up", abort=False)
    await stage.meet()
    trim()
    before = measure()
    for number in range(NUM_CYCLES):
        await _use_once(stage, f"cycle {number}", abort=number % 2 == 1)
    await stage.meet()
    try:
        await check_returned_async(before, timeout_s=RETURNED_S)
    except LeakError as error:
        stage.fail(f"after {NUM_CYCLES} worlds that were left or aborted: {error}")
    trim()
    grown = measure().resident_bytes - before.resident_bytes
    stage.check(grown < KEPT_BYTES, f"{NUM_CYCLES} worlds that moved 10 MB each left {grown >> 20} MB of memory in use")
    await stage.meet()


async def _use_once(stage: Stage, name: str, *, abort: bool) -> None:
    world, peer = await stage.join(name), 1 - stage.rank
    target = stage.full(CYCLE_NUMEL, 0)
    await together(world.send(stage.full(CYCLE_NUMEL, 1), peer), world.recv(target, peer), world.barrier())
    stage.check_full(target, 1, "recv")
    if not abort:
        await stage.meet()
        await world.leave()
        return
    pending = [asyncio.ensure_future(each) for each in (world.recv(target, peer), world.send(target, peer, 9))]
    await asyncio.sleep(0.005)
    world.abort()
    await asyncio.wait(pending)
    for each in pending:
        each.exception()  # whatever it was


@by_members(sizes=SEVERAL)
async def a_leave_delivers_what_was_sent(stage: Stage) -> None:
    """A rank that leaves delivers what it has sent, large or small, to receives that come later; then the others get
    PeerLeftError.
    """
    world = await stage.join()
    numels = (1, 700, 20_000, 300_000, LARGE)
    if stage.rank == 0:
        sends = [
            asyncio.ensure_future(world.send(stage.full(numel, number), dst, tag=number))
            for dst in stage.others
            for number, numel in enumerate(numels)
        ]
        await stage.meet()
        await world.leave(scaled(10.0))
        for send in await asyncio.gather(*sends, return_exceptions=True):
            stage.check(send is None, f"a send failed because its own rank left: {send!r}")
        return
    await stage.meet()
    await asyncio.sleep(0.02)  # the leave has begun
    for number, numel in reversed(list(enumerate(numels))):
        target = stage.full(numel, -1)
        what = f"recv of {numel} float32 from a rank that is leaving"
        await stage.in_time(world.recv(target, 0, tag=number), scaled(5.0), what)
        stage.check_full(target, number, what)
    error = await stage.must_raise(
        stage.in_time(world.recv(stage.full(1, 0), 0), scaled(8.0), "recv from a rank that has left"),
        mw.PeerLeftError,
        "recv of what a rank that has left never sent",
    )
    if isinstance(error, mw.PeerLeftError):
        stage.check(error.rank == 0, f"rank 0 has left, the error says that rank {error.rank} has")


@by_members(sizes=THREE)
async def the_last_collective_ends_well_for_who_comes_late(stage: Stage) -> None:
    """A rank that leaves right after a collective, and those whose world ends because it did, take nothing from a rank
    that comes to that collective long after them: neither its result nor what they sent before.
    """
    last = stage.size - 1  # the only one whose tensor the others get
    for numel in (1, 20_000, LARGE):
        world = await stage.join()
        tensor = stage.full(numel, numel if stage.rank == last else -1)
        await stage.meet()
        if stage.rank == 0:
            await asyncio.sleep(LATE_S)
            await stage.in_time(
                stage.receive_full(world, SENT_NUMEL, numel, 1, 0, "recv after a leave"),
                scaled(8.0),
                "recv after a leave",
            )
        elif stage.rank != last:
            await world.send(stage.full(SENT_NUMEL, numel), 0)
        await stage.in_time(
            world.broadcast(tensor, last), scaled(8.0), f"a broadcast of {numel} float32 before a leave"
        )
        stage.check_full(tensor, numel, "a broadcast before a leave")
        if stage.rank != last:
            await stage.in_time(world.wait_broken(), scaled(8.0), "the end of a world that a rank has left")
        await world.leave()
        await stage.meet()


@by_members(sizes=PAIR)
async def nothing_of_an_old_generation_reaches_a_new_one(stage: Stage) -> None:
    """When a world broke and is formed again under its name, its new receives and collectives get nothing of what was
    sent, pending or half done before.
    """
    for attempt in range(3):
        numel = (1, 20_000, LARGE)[attempt]
        world = await stage.join()
        peer, old = 1 - stage.rank, stage.full(numel, 666)
        pending = [asyncio.ensure_future(world.send(old, peer, tag)) for tag in (1, 1, 2)]
        pending.append(asyncio.ensure_future(world.recv(stage.full(numel, -1), peer, 3)))
        if stage.rank == 0:
            pending.append(asyncio.ensure_future(world.all_reduce(stage.full(numel, 666))))
        await asyncio.sleep(0.01)
        await stage.meet()
        if stage.rank == attempt % 2:
            world.abort()
        ended, late = await asyncio.wait(pending, timeout=KILL_S + PENDING_S)
        stage.check(not late, f"{len(late)} operations had not ended {KILL_S + PENDING_S:g} s after the world broke")
        for each in ended:
            each.exception()
        world.abort()
        generation, world = world.generation, await stage.join()
        stage.check(world.generation > generation, f"generation {generation} was followed by {world.generation}")
        received = [stage.full(numel, -1) for _ in range(4)]
        tags = (1, 1, 2, 3)
        reduced = stage.full(numel, 1)
        await together(
            *(world.recv(tensor, peer, tag) for tensor, tag in zip(received, tags, strict=True)),
            *(world.send(stage.full(numel, number), peer, tag) for number, tag in enumerate(tags)),
            world.all_reduce(reduced),
        )
        for number, tensor in enumerate(received):
            stage.check_full(tensor, number, f"recv number {number} in the next generation")
        stage.check_full(reduced, 2, "the first all_reduce of the next generation")
        await stage.meet()
        await world.leave()
        await stage.meet()
