"""Operations that are cancelled or run out of time: they end in time, stall nothing, and never write late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

import multiworld as mw
from tests.bounds import CANCEL_S, STALL_S

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

Run = Callable[[Coroutine[Any, Any, None]], None]
BACKENDS = ["shm", "tcp", "gloo"]


@asynccontextmanager
async def two_worlds(backend: str) -> AsyncIterator[tuple[mw.World, mw.World]]:
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        store = first.serve_store("tcp://127.0.0.1:0")
        worlds = await asyncio.gather(
            first.join("w", rank=0, world_size=2, store=store, backend=backend),
            second.join("w", rank=1, world_size=2, store=store, backend=backend),
        )
        yield worlds[0], worlds[1]


@asynccontextmanager
async def loop_watched() -> AsyncIterator[None]:
    """Fail when the event loop stands still for longer than ``STALL_S`` inside the block."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            worst = max(worst, time.monotonic() - before)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        ticker.cancel()
    assert worst < STALL_S, f"the event loop stood still for {worst:.3f} s"


@pytest.mark.parametrize("backend", BACKENDS)
def test_wait_for_on_a_receive_returns_in_time_and_nothing_writes_afterwards(run: Run, backend: str) -> None:
    async def scenario() -> None:
        async with two_worlds(backend) as (here, there):
            buffer = torch.full((1000,), -1.0)
            begin = time.monotonic()
            async with loop_watched():
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(here.recv(buffer, 1), 1)
            assert time.monotonic() - begin < 1 + CANCEL_S
            second = torch.zeros(1000)  # the cancelled receive takes nothing away
            await asyncio.gather(there.send(torch.full((1000,), 5.0), 0), here.recv(second, 1))
            assert bool((second == 5).all())
            assert bool((buffer == -1).all())

    run(scenario())


def test_a_receive_that_is_cancelled_amid_a_message_writes_nothing_more_and_loses_no_message(run: Run) -> None:
    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            numel = 16 * 1024 * 1024
            for attempt in range(5):
                source = torch.full((numel,), float(attempt))
                buffer = torch.full((numel,), -1.0)
                sending = asyncio.create_task(there.send(source, 0))
                receiving = asyncio.create_task(here.recv(buffer, 1))
                await asyncio.sleep(0.002 * attempt)
                receiving.cancel()
                cancelled = await asyncio.gather(receiving, return_exceptions=True)
                seen = buffer.clone()
                if cancelled[0] is None:  # it was faster
                    assert bool((buffer == attempt).all())
                else:
                    again = torch.full((numel,), -1.0)
                    await here.recv(again, 1)
                    assert bool((again == attempt).all())
                await sending
                assert torch.equal(seen, buffer)

    run(scenario())


@pytest.mark.parametrize("side", ["send", "recv"])
def test_cancelling_amid_a_large_message_does_not_stall_the_loop(run: Run, side: str) -> None:
    """The rest of a send, or what a receive has taken already, is copied: 64 MB take tens of milliseconds."""

    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            numel = 16 * 1024 * 1024
            source, buffer, again = (torch.full((numel,), value) for value in (1.0, -1.0, -1.0))
            async with loop_watched():
                sending = asyncio.create_task(there.send(source, 0))
                receiving = asyncio.create_task(here.recv(buffer, 1))
                await asyncio.sleep(0.004)
                (sending if side == "send" else receiving).cancel()
                await asyncio.wait([sending] if side == "send" else [receiving])
                if side == "recv":
                    await asyncio.gather(sending, here.recv(again, 1) if receiving.cancelled() else receiving)
                    received = again if receiving.cancelled() else buffer
                else:
                    source.fill_(7.0)  # ours again: the message is what it was
                    await receiving
                    received = buffer
            assert bool((received == 1).all())

    run(scenario())


def test_a_receive_that_is_cancelled_by_two_at_once_keeps_its_message_whole(run: Run) -> None:
    """Neither returns before what the receive had taken is copied: then its tensor may be written."""

    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            numel = 16 * 1024 * 1024
            source, buffer, again = (torch.full((numel,), value) for value in (1.0, -1.0, -1.0))
            for attempt in range(6):
                buffer.fill_(-1.0)
                sending = asyncio.create_task(there.send(source, 0))
                delay_s = 0.003 + 0.001 * attempt
                receiving = asyncio.create_task(here.recv(buffer, 1, timeout_s=delay_s))
                done, _ = await asyncio.wait([receiving], timeout=delay_s)
                if not done:
                    receiving.cancel()
                    await asyncio.wait([receiving])
                received = not receiving.cancelled() and receiving.exception() is None
                if not received:
                    buffer.add_(7.0)  # ours again
                    await here.recv(again, 1)
                    assert bool((again == 1).all())
                await sending

    run(scenario())


@pytest.mark.parametrize("kind", ["recv", "recv_tensors", "barrier", "all_reduce"])
def test_a_deadline_is_kept_and_its_error_names_the_operation(run: Run, kind: str) -> None:
    async def scenario() -> None:
        async with two_worlds("tcp") as (here, _):
            operations: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                "recv": lambda: here.recv(torch.zeros(1), 1, timeout_s=0.3),
                "recv_tensors": lambda: here.recv_tensors(1, timeout_s=0.3),
                "barrier": lambda: here.barrier(timeout_s=0.3),
                "all_reduce": lambda: here.all_reduce(torch.zeros(1), timeout_s=0.3),
            }
            begin = time.monotonic()
            async with loop_watched():
                with pytest.raises(mw.OperationTimeoutError, match=kind):
                    await operations[kind]()
            assert 0.25 < time.monotonic() - begin < 0.3 + CANCEL_S

    run(scenario())


def test_a_send_that_nobody_receives_ends_at_its_deadline_and_the_world_stays_usable(run: Run) -> None:
    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            big = torch.ones(64 * 1024 * 1024)
            begin = time.monotonic()

            async def send_all() -> None:
                for _ in range(8):  # what the other side takes in before it pushes back is its own affair
                    await here.send(big, 1, timeout_s=0.3)

            with pytest.raises(mw.OperationTimeoutError, match="send"):
                await send_all()
            assert time.monotonic() - begin < 20
            assert here.state is mw.WorldState.ACTIVE
            assert there.state is mw.WorldState.ACTIVE

    run(scenario())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gloo_or_tcp_world_that_times_out_breaks_no_other_world(run: Run, backend: str) -> None:
    async def scenario() -> None:
        async with mw.WorldManager() as first, mw.WorldManager() as second:
            store = first.serve_store("tcp://127.0.0.1:0")
            pairs = {}
            for name in ("a", "b"):
                pairs[name] = await asyncio.gather(
                    first.join(name, rank=0, world_size=2, store=store, backend=backend),
                    second.join(name, rank=1, world_size=2, store=store, backend=backend),
                )
            with pytest.raises(mw.OperationTimeoutError):
                await pairs["a"][0].recv(torch.zeros(1), 1, timeout_s=0.2)
            tensors = [torch.ones(3), torch.ones(3)]
            await asyncio.gather(*(world.all_reduce(tensor) for world, tensor in zip(pairs["b"], tensors, strict=True)))
            assert [tensor.tolist() for tensor in tensors] == [[2.0] * 3] * 2

    run(scenario())
