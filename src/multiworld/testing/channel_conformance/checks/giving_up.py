"""Operations that are given up, by their deadline or by their task: in time, at no cost, and never written late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

import multiworld as mw

from ...deadlines import CANCEL_S, scaled
from ...tasks import together
from ..catalogue import PAIR, SEVERAL, by_members
from ..stage import Stage

DEADLINE_S = 0.2
STUCK_S = 1.2  # for what can be stopped only by breaking the world, that takes a moment too
LARGE = 3_000_000  # float32: no socket takes it all
SENTINEL = 77.0
FIRST_TAG = 10


@dataclass
class Lonely:
    """An operation that nobody answers, and what it may write into."""

    name: str
    issue: Callable[[float | None], Coroutine[Any, Any, Any]]
    outputs: list[Tensor] = field(default_factory=list)


def lonely_operations(stage: Stage, world: mw.World, *, numel: int = 1000) -> list[Lonely]:
    """Return one operation of each kind that waits for the peer (of two ranks), on new tensors full of 1."""
    peer = 1 - stage.rank

    def ones(number: int = 2) -> list[Tensor]:
        return [stage.full(numel, 1) for _ in range(number)]

    one, all_, reduced, target, scattered, kept = ones(1), ones(1), ones(1), ones(1), ones(1), ones(1)
    gathered, listed, exchanged, large = ones(), ones(), ones(), [stage.full(LARGE, 1)]
    return [
        Lonely("recv", lambda timeout_s: world.recv(one[0], peer, FIRST_TAG, timeout_s), one),
        Lonely("recv", lambda timeout_s: world.recv(large[0], peer, FIRST_TAG + 1, timeout_s), large),
        Lonely("recv_tensors", lambda timeout_s: world.recv_tensors(peer, FIRST_TAG + 2, timeout_s)),
        Lonely("broadcast", lambda timeout_s: world.broadcast(target[0], peer, timeout_s), target),
        Lonely("all_reduce", lambda timeout_s: world.all_reduce(all_[0], mw.ReduceOp.SUM, timeout_s), all_),
        Lonely("reduce", lambda timeout_s: world.reduce(reduced[0], stage.rank, mw.ReduceOp.SUM, timeout_s), reduced),
        Lonely("all_gather", lambda timeout_s: world.all_gather(gathered, stage.full(numel, 2), timeout_s), gathered),
        Lonely("gather", lambda timeout_s: world.gather(stage.full(numel, 2), listed, stage.rank, timeout_s), listed),
        Lonely("scatter", lambda timeout_s: world.scatter(scattered[0], None, peer, timeout_s), scattered),
        Lonely(
            "reduce_scatter", lambda timeout_s: world.reduce_scatter(kept[0], ones(), mw.ReduceOp.SUM, timeout_s), kept
        ),
        Lonely("all_to_all", lambda timeout_s: world.all_to_all(exchanged, ones(), timeout_s), exchanged),
        Lonely("barrier", lambda timeout_s: world.barrier(timeout_s)),
    ]


def _answers(stage: Stage, world: mw.World) -> list[Coroutine[Any, Any, Any]]:
    """Return what the peer does for each collective among the lonely operations, in their order."""
    peer, numel = 1 - stage.rank, 1000

    def ones() -> list[Tensor]:
        return [stage.full(numel, 1) for _ in range(2)]

    return [
        world.broadcast(stage.full(numel, 3), stage.rank),
        world.all_reduce(stage.full(numel, 3)),
        world.reduce(stage.full(numel, 3), peer),
        world.all_gather(ones(), stage.full(numel, 3)),
        world.gather(stage.full(numel, 3), None, peer),
        world.scatter(stage.full(numel, 3), ones(), stage.rank),
        world.reduce_scatter(stage.full(numel, 3), ones()),
        world.all_to_all(ones(), ones()),
        world.barrier(),
    ]


@by_members(sizes=PAIR)
async def an_operation_ends_at_its_deadline(stage: Stage) -> None:
    """An operation of any kind that its peer does not answer raises OperationTimeoutError at its timeout_s. Afterwards
    its tensors are the caller's, its message stays, and the world is as usable as before.
    """

    async def give_up(operation: Lonely) -> None:
        began = time.monotonic()
        await stage.must_raise(operation.issue(DEADLINE_S), mw.OperationTimeoutError, f"a lonely {operation.name}")
        _check_late(stage, f"{operation.name} with timeout_s={DEADLINE_S}", time.monotonic() - began - DEADLINE_S)

    await _give_up_all(stage, give_up)


@by_members(sizes=PAIR)
async def a_cancelled_task_ends_its_operation(stage: Stage) -> None:
    """A task that waits for an operation of any kind can be cancelled. Afterwards its tensors are the caller's, its
    message stays, and the world is as usable as before.
    """

    async def give_up(operation: Lonely) -> None:
        task = asyncio.ensure_future(operation.issue(None))
        await asyncio.wait([task], timeout=DEADLINE_S)
        began = time.monotonic()
        task.cancel()
        await stage.must_raise(_result(task), asyncio.CancelledError, f"a cancelled {operation.name}")
        _check_late(stage, f"{operation.name}, cancelled,", time.monotonic() - began)

    await _give_up_all(stage, give_up)


async def _give_up_all(stage: Stage, give_up: Callable[[Lonely], Coroutine[Any, Any, None]]) -> None:
    world = await stage.join()
    if stage.rank == 0:
        operations = lonely_operations(stage, world)
        await asyncio.gather(*(give_up(operation) for operation in operations))
        for operation in operations:
            for output in operation.outputs:
                output.fill_(SENTINEL)
    await stage.meet()
    if stage.rank == 1:
        for answer in _answers(stage, world):
            try:
                await stage.in_time(answer, STUCK_S + scaled(2.0), "a collective that the peer had given up")
            except mw.CollectiveMismatchError:
                continue
        late = [world.send(stage.full(numel, 5), 0, FIRST_TAG + index) for index, numel in enumerate((1000, LARGE, 7))]
        sending = [asyncio.ensure_future(each) for each in late]
        await stage.meet()
        await asyncio.gather(*sending)
    else:
        await stage.meet()
        await _check_messages_stayed(stage, world)
        for operation in operations:
            for output in operation.outputs:
                stage.check_full(output, SENTINEL, f"{operation.name} wrote into its tensor after it had ended")
    stage.check(
        world.state is mw.WorldState.ACTIVE, f"giving up operations that nobody answered broke the world: {world.error}"
    )
    tensor = stage.full(100, 1)
    await stage.in_time(world.all_reduce(tensor), scaled(3.0), "the all_reduce after operations were given up")
    stage.check_full(tensor, stage.size, "the all_reduce after operations were given up")


async def _check_messages_stayed(stage: Stage, world: mw.World) -> None:
    for tag, numel in ((FIRST_TAG, 1000), (FIRST_TAG + 1, LARGE)):
        target = stage.full(numel, -1)
        await stage.in_time(world.recv(target, 1, tag), scaled(3.0), "the recv after one that was given up")
        stage.check_full(target, 5, "the recv after one that was given up got another message")
    payload = await stage.in_time(world.recv_tensors(1, FIRST_TAG + 2), scaled(3.0), "the recv_tensors after another")
    stage.check_full(payload, 5, "the recv_tensors after one that was given up got another message")


@by_members(sizes=PAIR)
async def a_send_that_nobody_receives_ends_at_its_deadline(stage: Stage) -> None:
    """A send whose message is not received either has it delivered later or raises OperationTimeoutError in time, and
    then it is as if it had not been; its tensor is not read afterwards.
    """
    world = await stage.join()
    outcomes = []
    for number, numel in enumerate((1000, 300_000, LARGE, 6 * LARGE)):
        if stage.rank == 0:
            tensor, began = stage.full(numel, number), time.monotonic()
            try:
                await world.send(tensor, 1, timeout_s=DEADLINE_S)
            except mw.OperationTimeoutError:
                outcomes.append(False)
            else:
                outcomes.append(True)
            _check_late(stage, f"send with timeout_s={DEADLINE_S}", time.monotonic() - began - DEADLINE_S)
            tensor.fill_(666)
    sent = (await stage.exchange(outcomes))[0]
    stage.check(world.state is mw.WorldState.ACTIVE, f"a send at its deadline broke the world: {world.error}")
    if stage.rank == 0:
        await world.send(stage.full(1, 99), 1)
        return
    for number, numel in enumerate((1000, 300_000, LARGE, 6 * LARGE)):
        if sent[number]:
            target = stage.full(numel, -1)
            await world.recv(target, 0)
            stage.check_full(target, number, "the message of a send that had returned, which nobody received at first")
    marker = stage.full(1, -1)
    await world.recv(marker, 0)
    stage.check_full(marker, 99, "the message behind sends that had raised")


@by_members(sizes=PAIR)
async def a_receive_is_never_written_late(stage: Stage) -> None:
    """At whatever moment a receive is cancelled or runs out of time, its tensor is the caller's then, and the message
    is kept whole for the next receive.
    """
    world = await stage.join()
    for attempt in range(stage.role.num_moments):
        numel = stage.chance.choice((1, 20_000, 300_000, LARGE, LARGE))
        delay_s, by_deadline = stage.chance.uniform(0.0002, 0.006), stage.chance.random() < 0.5
        how = "ran out of time" if by_deadline else "was cancelled"
        what = f"a recv of {numel} float32 that {how} after {delay_s * 1e3:.2f} ms"
        if stage.rank == 1:
            sending = asyncio.ensure_future(world.send(stage.full(numel, attempt), 0))
            await asyncio.sleep(0)
            (received, _) = await stage.exchange(True)
            if world.state is mw.WorldState.ACTIVE:
                await asyncio.wait([sending])
        else:
            buffer = stage.full(numel, -1)
            received = await _receive_or_give_up(stage, world, buffer, delay_s, by_deadline=by_deadline, what=what)
            if received:
                stage.check_full(buffer, attempt, "a recv that was done just before it was given up")
            buffer.fill_(SENTINEL)
            await stage.exchange(received)
            await asyncio.sleep(0.005)
            stage.check_full(buffer, SENTINEL, f"{what} wrote into its tensor afterwards")
            if not received and world.state is mw.WorldState.ACTIVE:
                again = stage.full(numel, -1)
                await _or_broken(stage, stage.in_time(world.recv(again, 1), scaled(3.0), f"the recv after {what}"))
                if world.state is mw.WorldState.ACTIVE:
                    stage.check_full(again, attempt, f"the recv after {what}")
            stage.check_full(buffer, SENTINEL, f"{what} wrote into its tensor afterwards")
        world = await stage.standing(world)
        if stage.rank == 0:
            stage.check_full(buffer, SENTINEL, f"{what} wrote into its tensor afterwards")


async def _receive_or_give_up(
    stage: Stage, world: mw.World, buffer: Tensor, delay_s: float, *, by_deadline: bool, what: str
) -> bool:
    began = time.monotonic()
    try:
        if by_deadline:
            await world.recv(buffer, 1, timeout_s=delay_s)
        else:
            await asyncio.wait_for(world.recv(buffer, 1), delay_s)
    except (mw.OperationTimeoutError, asyncio.TimeoutError):
        return False
    else:
        return True
    finally:
        _check_late(stage, what, time.monotonic() - began - delay_s, moving=True)


@by_members(sizes=PAIR)
async def a_message_that_nobody_heard_of_stays(stage: Stage) -> None:
    """A receive whose task is cancelled when the message is there, but before the task has heard of it, leaves the
    message to the next receive, in its place in the order.
    """
    world = await stage.join()
    for numel in (1, 5_000, LARGE):
        for any_payload in (False, True):
            if stage.rank == 1:
                await stage.meet()
                await together(*(world.send(stage.full(numel, value), 0) for value in (1, 2)))
                await stage.meet()
                continue
            operation = world.recv_tensors(1) if any_payload else world.recv(stage.full(numel, -1), 1)
            receiving = asyncio.ensure_future(operation)
            await asyncio.sleep(0)
            await stage.meet()
            time.sleep(0.05)  # noqa: ASYNC251 - the message comes while the event loop cannot tell anybody
            receiving.cancel()
            await asyncio.wait([receiving])
            expected = (1, 2) if receiving.cancelled() else (2,)
            for value in expected:
                what = (
                    f"recv number {value} of {numel} float32, after one that was cancelled when its message was there,"
                )
                await stage.in_time(stage.receive_full(world, numel, value, 1, 0, what), scaled(3.0), what)
            await stage.meet()


@by_members(sizes=PAIR)
async def a_send_that_is_given_up_is_whole_or_not_at_all(stage: Stage) -> None:
    """At whatever moment a send is cancelled or runs out of time, its tensor is not read any more then, and its message
    arrives whole or not at all.
    """
    world = await stage.join()
    for attempt in range(stage.role.num_moments):
        numel = stage.chance.choice((20_000, 300_000, LARGE, LARGE))
        delay_s, by_deadline = stage.chance.uniform(0.0002, 0.006), stage.chance.random() < 0.5
        how = "ran out of time" if by_deadline else "was cancelled"
        what = f"a send of {numel} float32 that {how} after {delay_s * 1e3:.2f} ms"
        tag = 1 + attempt
        if stage.rank == 0:
            await _send_or_give_up(
                stage, world, stage.full(numel, attempt), delay_s, by_deadline=by_deadline, what=what
            )
            await _or_broken(stage, world.send(stage.full(numel, -attempt - 1), 1, tag))
        else:
            target = stage.full(numel, SENTINEL)
            if await _or_broken(stage, world.recv(target, 0, tag)):
                value = float(target[0].item())
                stage.check(value in (attempt, -attempt - 1), f"a recv got {value:g}, which was never sent")
                stage.check_full(target, value, f"{what} arrived in part")
                if value == attempt:  # then the one behind it is still to come
                    await _or_broken(stage, world.recv(target, 0, tag))
        world = await stage.standing(world)


async def _send_or_give_up(
    stage: Stage, world: mw.World, tensor: Tensor, delay_s: float, *, by_deadline: bool, what: str
) -> None:
    tag = 1 + int(tensor[0].item())
    began = time.monotonic()
    try:
        if by_deadline:
            await world.send(tensor, 1, tag, timeout_s=delay_s)
        else:
            await asyncio.wait_for(world.send(tensor, 1, tag), delay_s)
    except (mw.OperationTimeoutError, asyncio.TimeoutError):
        pass
    _check_late(stage, what, time.monotonic() - began - delay_s, moving=True)
    tensor.fill_(666)


@by_members(sizes=SEVERAL)
async def collectives_may_be_given_up_at_any_moment(stage: Stage) -> None:
    """Whenever collectives run out of time, each rank has right data or an error, and the world stands; those whose
    peers gave up end too.
    """
    world = await stage.join()
    allowed = (mw.OperationTimeoutError, mw.CollectiveMismatchError)
    for _ in range(3 * stage.role.num_moments):
        numel, kind = stage.chance.choice((1, 20_000, 300_000, 1_000_000)), stage.chance.randrange(3)
        tensors = [stage.full(numel, 1) for _ in stage.ranks]
        await asyncio.sleep(stage.own_chance.uniform(0, 0.01))
        timeout_s = stage.own_chance.uniform(0.001, 0.02)
        began = time.monotonic()
        try:
            if kind == 0:
                await world.all_reduce(tensors[0], timeout_s=timeout_s)
                stage.check_full(tensors[0], stage.size, "an all_reduce of which some were given up")
            elif kind == 1:
                await world.all_gather(tensors, stage.full(numel, 4), timeout_s=timeout_s)
                for tensor in tensors:
                    stage.check_full(tensor, 4, "an all_gather of which some were given up")
            else:
                await world.broadcast(tensors[0], 0, timeout_s=timeout_s)
                stage.check_full(tensors[0], 1, "a broadcast of which some were given up")
        except allowed:
            for tensor in tensors:
                tensor.fill_(SENTINEL)
        except mw.WorldBrokenError:
            if not stage.channel.cancel_costs_world:
                raise
        else:
            continue
        finally:
            _check_late(
                stage, f"a collective with timeout_s={timeout_s:.4f}", time.monotonic() - began - timeout_s, moving=True
            )
        if stage.channel.cancel_costs_world and world.state is not mw.WorldState.ACTIVE:
            break
    world = await stage.standing(world)
    tensor = stage.full(300_000, 1)
    await stage.in_time(world.all_reduce(tensor), scaled(3.0), "the all_reduce after collectives were given up")
    stage.check_full(tensor, stage.size, "the all_reduce after collectives were given up")
    counts = world.statistics().channel
    waiting = counts.receives_waiting + counts.sends_waiting
    stage.check(waiting == 0, f"operations still wait after all collectives have ended: {counts}")


def _check_late(stage: Stage, what: str, late_s: float, *, moving: bool = False) -> None:
    bound_s = CANCEL_S + (STUCK_S if moving and stage.channel.cancel_costs_world else 0)
    stage.check(late_s < bound_s, f"{what} ended {late_s:.3f} s late, more than {bound_s:g} s")


async def _result(task: asyncio.Task[Any]) -> Any:
    """Return or raise what a task did, and its cancellation as if it were ours."""
    await asyncio.wait([task])
    return task.result()


async def _or_broken(stage: Stage, operation: Coroutine[Any, Any, Any]) -> bool:
    """Return whether it succeeded; a world that giving up may cost may be broken instead."""
    try:
        await operation
    except mw.WorldBrokenError:
        if not stage.channel.cancel_costs_world:
            raise
        return False
    return True
