"""Joins that cannot succeed: one clear error in time, nothing left behind, and the same name works afterwards."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

import multiworld as mw
from multiworld.testing import Relay, scaled

pytestmark = pytest.mark.usefixtures("no_leaks")

Run = Callable[[Coroutine[Any, Any, None]], None]
SHORT_S = 0.6


@asynccontextmanager
async def two_managers() -> AsyncIterator[tuple[mw.WorldManager, mw.WorldManager, str]]:
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        yield first, second, first.serve_store("tcp://127.0.0.1:0")


async def assert_works(first: mw.WorldManager, second: mw.WorldManager, store: str, name: str) -> None:
    """Form the world and move one number through it."""
    worlds = await asyncio.gather(
        first.join(name, rank=0, world_size=2, store=store, backend="tcp"),
        second.join(name, rank=1, world_size=2, store=store, backend="tcp"),
    )
    tensor = torch.zeros(1)
    await asyncio.gather(worlds[0].send(torch.tensor([7.0]), 1), worlds[1].recv(tensor, 0))
    assert tensor.item() == 7


async def assert_join_fails(
    manager: mw.WorldManager, kind: type[BaseException], *, within_s: float = SHORT_S, match: str, **options: Any
) -> None:
    begin = time.monotonic()
    settings: dict[str, Any] = {"rank": 0, "world_size": 2, "backend": "tcp", "timeout_s": SHORT_S, **options}
    with pytest.raises(kind, match=match):
        await manager.join("w", **settings)
    took_s = time.monotonic() - begin
    assert took_s < within_s + scaled(0.5), f"took {took_s:.2f} s"
    assert "w" not in manager.worlds


def test_a_member_that_never_shows_up_is_named(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            await assert_join_fails(first, mw.JoinTimeoutError, match=r"1", store=store)
            await assert_works(first, second, store, "w")

    run(scenario())


def test_a_wrong_world_size_is_refused(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            waiting = asyncio.create_task(
                first.join("w", rank=0, world_size=3, store=store, backend="tcp", timeout_s=SHORT_S)
            )
            await asyncio.sleep(0.1)  # so that it is this one that waits
            await assert_join_fails(second, mw.JoinMismatchError, match="world_size", store=store, rank=1)
            with pytest.raises(mw.JoinError):
                await waiting
            await assert_works(first, second, store, "w")

    run(scenario())


def test_backends_that_differ_are_refused(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            waiting = asyncio.create_task(
                first.join("w", rank=0, world_size=2, store=store, backend="gloo", timeout_s=SHORT_S)
            )
            await asyncio.sleep(0.1)
            await assert_join_fails(second, mw.JoinMismatchError, match="backend", store=store, rank=1)
            with pytest.raises(mw.JoinError):
                await waiting
            await assert_works(first, second, store, "w")

    run(scenario())


def test_a_rank_that_is_taken_is_refused_and_the_first_one_keeps_it(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store), mw.WorldManager() as third:
            waiting = asyncio.create_task(first.join("w", rank=0, world_size=2, store=store, backend="tcp"))
            await asyncio.sleep(0.1)
            await assert_join_fails(third, mw.JoinRefusedError, match="rank 0", store=store, within_s=5, timeout_s=5)
            world = await second.join("w", rank=1, world_size=2, store=store, backend="tcp")
            await asyncio.gather(world.barrier(), (await waiting).barrier())

    run(scenario())


def test_a_name_in_use_in_this_process_is_refused(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            await assert_works(first, second, store, "w")
            with pytest.raises(mw.JoinRefusedError, match="w"):
                await first.join("w", rank=0, world_size=2, store=store, backend="tcp", timeout_s=SHORT_S)
            await asyncio.gather(first.worlds["w"].barrier(), second.worlds["w"].barrier())

    run(scenario())


def test_two_joins_of_one_name_at_once_in_one_process_do_not_mix(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            waiting = asyncio.create_task(first.join("w", rank=0, world_size=2, store=store, backend="tcp"))
            await asyncio.sleep(0)
            with pytest.raises(mw.JoinRefusedError, match="w"):
                await first.join("w", rank=1, world_size=2, store=store, backend="tcp", timeout_s=SHORT_S)
            await asyncio.gather(waiting, second.join("w", rank=1, world_size=2, store=store, backend="tcp"))

    run(scenario())


def test_a_member_that_died_while_it_waited_frees_its_rank(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            waiting = asyncio.create_task(second.join("w", rank=1, world_size=2, store=store, backend="tcp"))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await assert_works(first, second, store, "w")

    run(scenario())


def test_a_store_where_nobody_listens_is_reported_at_the_deadline(run: Run) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        async with two_managers() as (first, second, store):
            await assert_join_fails(
                first, mw.MultiworldError, match=f"{port}.*Connection refused", store=f"tcp://127.0.0.1:{port}"
            )
            await assert_works(first, second, store, "w")

    run(scenario())


@pytest.mark.parametrize("listening", [True, False])
def test_a_store_that_says_nothing_is_reported_at_the_deadline(run: Run, listening: bool) -> None:
    async def scenario() -> None:
        silent = socket.create_server(("127.0.0.1", 0), backlog=8 if listening else 0)
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with silent:
            async with two_managers() as (first, second, store):
                await assert_join_fails(first, mw.JoinTimeoutError, match="store", store=url)
                await assert_works(first, second, store, "w")

    run(scenario())


def test_a_store_that_freezes_while_members_wait_is_reported_at_the_deadline(run: Run) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            host, port = store.removeprefix("tcp://").split(":")
            with Relay(host, int(port)) as relay:
                through_relay = f"tcp://{relay.host}:{relay.port}"
                waiting = asyncio.create_task(
                    second.join("w", rank=1, world_size=2, store=through_relay, backend="tcp", timeout_s=SHORT_S)
                )
                await asyncio.to_thread(relay.wait_connections)
                await asyncio.to_thread(relay.freeze)
                begin = time.monotonic()
                with pytest.raises(mw.JoinTimeoutError):
                    await waiting
                assert time.monotonic() - begin < SHORT_S + scaled(0.5)
                await asyncio.to_thread(relay.cut)
                await assert_works(first, second, store, "w")

    run(scenario())


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"store": "tcp://127.0.0.1"}, ValueError, "tcp://HOST:PORT"),
        ({"store": "http://127.0.0.1:1"}, ValueError, "tcp://HOST:PORT"),
        ({"store": "tcp://127.0.0.1:99999"}, ValueError, "99999"),
        ({"rank": 2}, ValueError, "rank"),
        ({"rank": -1}, ValueError, "rank"),
        ({"world_size": 0}, ValueError, "world_size"),
        ({"backend": "carrier-pigeon"}, ValueError, "carrier-pigeon"),
        ({"timeout_s": -1}, ValueError, "timeout_s"),
    ],
)
def test_bad_arguments_are_refused_at_once(
    run: Run, options: dict[str, Any], kind: type[Exception], match: str
) -> None:
    async def scenario() -> None:
        async with two_managers() as (first, second, store):
            await assert_join_fails(first, kind, match=match, within_s=0, **{"store": store, **options})
            await assert_works(first, second, store, "w")

    run(scenario())


def test_a_port_that_is_taken_is_reported_and_the_next_one_serves(run: Run) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = f"tcp://127.0.0.1:{other.getsockname()[1]}"
            async with mw.WorldManager() as manager:
                with pytest.raises(mw.StoreError, match="in use"):
                    manager.serve_store(taken)
                await assert_join_fails(manager, mw.MultiworldError, match="in use", store=taken, serve_store=True)
                assert manager.serve_store("tcp://127.0.0.1:0").startswith("tcp://127.0.0.1:")

    run(scenario())


def test_an_address_that_is_not_ours_cannot_be_served(run: Run) -> None:
    async def scenario() -> None:
        async with mw.WorldManager() as manager:
            with pytest.raises(mw.StoreError, match="assign"):
                manager.serve_store("tcp://192.0.2.1:0")

    run(scenario())


def test_port_0_names_no_store(run: Run) -> None:
    async def scenario() -> None:
        async with mw.WorldManager() as manager:
            with pytest.raises(ValueError, match="port 0 names no store"):
                await manager.join("w", 0, 2, "tcp://127.0.0.1:0", serve_store=True)

    run(scenario())


@pytest.mark.parametrize("job", ["", "a/b", "x" * 201])
def test_a_job_needs_a_usable_name(job: str) -> None:
    with pytest.raises(ValueError, match="1 to 200 characters"):
        mw.WorldManager(job=job)
