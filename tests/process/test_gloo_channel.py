"""Payloads that go over Gloo itself: the group that the first of them calls for, and every way in which one can end.

Only payloads of more than ``INLINE_BYTES`` do, so that is a few bytes here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed.distributed_c10d import Store

import multiworld as mw
from multiworld.channel import registry
from multiworld.channel.gloo import channel as gloo
from multiworld.channel.gloo import group as gloo_group
from multiworld.channel.gloo.group import acquire_device
from multiworld.testing import scaled, wait_until
from tests.bounds import CANCEL_S

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(not registry.available()["gloo"].works, reason="this PyTorch has no Gloo"),
]

NUMEL = 50_000
LARGE_NUMEL = 16_000_000  # 64 MB: under way for some milliseconds
WAIT_S = 10.0


class Spy:
    """Counts what goes over Gloo, and can hold up those who connect."""

    def __init__(self) -> None:
        self.num_sends = 0
        self.may_connect = threading.Event()
        self.may_connect.set()


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spy]:
    spy = Spy()
    send = gloo_group.GlooGroup.send

    def counted(group: gloo_group.GlooGroup, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        spy.num_sends += tensor.nbytes > 0
        return send(group, tensor, peer, tag)

    def held(host: str) -> Any:
        spy.may_connect.wait(WAIT_S)
        return acquire_device(host)

    monkeypatch.setattr(gloo, "INLINE_BYTES", 1000)
    monkeypatch.setattr(gloo_group.GlooGroup, "send", counted)
    monkeypatch.setattr(gloo_group, "acquire_device", held)
    yield spy
    spy.may_connect.set()


@asynccontextmanager
async def worlds_of(size: int) -> AsyncIterator[list[mw.World]]:
    managers = [mw.WorldManager() for _ in range(size)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        joins = [manager.join("w", rank, size, url, backend="gloo") for rank, manager in enumerate(managers)]
        yield list(await asyncio.gather(*joins))
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


def group_of(world: mw.World, peer: int) -> gloo_group.GlooGroup:
    channel = world._channel
    assert isinstance(channel, gloo.GlooChannel)
    return channel._groups[peer - (peer > world.rank)]


async def exchange(source: mw.World, target: mw.World, value: float, tag: int = 0) -> None:
    received = torch.zeros(NUMEL)
    await asyncio.gather(
        source.send(torch.full((NUMEL,), value), target.rank, tag=tag), target.recv(received, source.rank, tag=tag)
    )
    assert bool((received == value).all())


async def connect(one: mw.World, two: mw.World) -> None:
    """Let two ranks connect over Gloo."""
    await exchange(one, two, 1.0)

    def ready() -> bool:
        return group_of(one, two.rank).ready and group_of(two, one.rank).ready

    assert await asyncio.to_thread(wait_until, ready, WAIT_S)


async def test_the_first_large_payload_travels_with_its_header_and_the_later_ones_over_gloo(spy: Spy) -> None:
    async with worlds_of(3) as worlds:
        await connect(worlds[2], worlds[0])
        sent_before = spy.num_sends
        for tag in range(5):
            await exchange(worlds[2], worlds[0], float(tag), tag)
            await exchange(worlds[0], worlds[2], -float(tag), tag)
        assert spy.num_sends - sent_before == 10
        assert not group_of(worlds[1], 0).ready, "these two have sent each other nothing large"


async def test_what_joins_and_sends_little_holds_nothing_of_gloo(spy: Spy) -> None:
    async with worlds_of(2) as worlds:
        small = [torch.ones(10), torch.ones(10)]
        await asyncio.gather(*(world.all_reduce(tensor) for world, tensor in zip(worlds, small, strict=True)))
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("gloo-")]
        assert spy.num_sends == 0
        assert not group_of(worlds[0], 1).ready


async def test_payloads_of_several_tensors_and_many_at_once_arrive_as_they_were(spy: Spy) -> None:
    async with worlds_of(2) as (here, there):
        await connect(here, there)
        payloads = [
            {"a": torch.full((NUMEL,), float(index)), "b": torch.arange(index + 1), "none": torch.empty(0)}
            for index in range(20)
        ]
        sends = [here.send_tensors(payload, 1, tag=index % 3) for index, payload in enumerate(payloads)]
        receives = [there.recv_tensors(0, tag=index % 3) for index in range(len(payloads))]
        results = await asyncio.gather(*sends, *receives)
        for payload, received in zip(payloads, results[len(payloads) :], strict=True):
            assert isinstance(received, dict)
            assert list(received) == list(payload)
            assert all(torch.equal(received[name], tensor) for name, tensor in payload.items())
        assert spy.num_sends >= len(payloads)


async def test_collectives_over_gloo_give_what_they_should(spy: Spy) -> None:
    async with worlds_of(3) as worlds:
        for _ in range(3):
            tensors = [torch.arange(float(NUMEL)) * (world.rank + 1) for world in worlds]
            await asyncio.gather(*(world.all_reduce(tensor) for world, tensor in zip(worlds, tensors, strict=True)))
            assert all(torch.equal(tensor, torch.arange(float(NUMEL)) * 6) for tensor in tensors)
        assert await asyncio.to_thread(wait_until, lambda: group_of(worlds[0], 1).ready, WAIT_S)
        tensors = [torch.full((NUMEL,), float(world.rank)) for world in worlds]
        await asyncio.gather(*(world.broadcast(tensor, 0) for world, tensor in zip(worlds, tensors, strict=True)))
        assert all(bool((tensor == 0).all()) for tensor in tensors)
        assert spy.num_sends > 0


async def test_while_gloo_connects_payloads_go_without_it_and_nobody_waits(spy: Spy) -> None:
    async with worlds_of(2) as (here, there):
        spy.may_connect.clear()
        for number in range(5):
            await asyncio.wait_for(exchange(here, there, float(number)), scaled(2))
        assert spy.num_sends == 0
        spy.may_connect.set()
        await connect(here, there)
        sent_before = spy.num_sends
        await exchange(here, there, 7.0)
        assert spy.num_sends - sent_before == 1


async def test_where_gloo_cannot_connect_payloads_go_without_it_and_the_log_says_why(
    spy: Spy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(host: str) -> Any:
        raise RuntimeError("no such device")

    monkeypatch.setattr(gloo_group, "acquire_device", refuse)
    async with worlds_of(2) as (here, there):
        for number in range(5):
            await exchange(here, there, float(number))

        def said() -> int:
            return sum("Gloo could not connect: no such device" in line for line in caplog.messages)

        assert await asyncio.to_thread(wait_until, lambda: said() == 2, WAIT_S), "once on each side"
        await exchange(here, there, 9.0)
        assert said() == 2
        assert spy.num_sends == 0
        assert here.state is there.state is mw.WorldState.ACTIVE


async def test_where_one_side_cannot_connect_neither_uses_gloo(
    spy: Spy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    construct = gloo_group.GlooGroup._construct
    other_is_built = threading.Event()

    def construct_or_fail(group: gloo_group.GlooGroup, store: Any, device: Any) -> Any:
        built = construct(group, store, device)
        if group._rank == 1:
            other_is_built.wait(WAIT_S)  # else that one sees its connections end while it makes them
            raise RuntimeError("lost its connections")
        other_is_built.set()
        return built

    monkeypatch.setattr(gloo_group.GlooGroup, "_construct", construct_or_fail)
    async with worlds_of(2) as (here, there):
        await exchange(here, there, 1.0)

        def said() -> bool:
            return any("the other rank could not: lost its connections" in line for line in caplog.messages)

        assert await asyncio.to_thread(wait_until, said, WAIT_S)
        await exchange(here, there, 2.0)
        await exchange(there, here, 3.0)
        assert spy.num_sends == 0
        assert here.state is there.state is mw.WorldState.ACTIVE


async def test_a_payload_that_comes_over_gloo_before_this_side_is_connected_waits_for_that(spy: Spy) -> None:
    """The one that connects first may send at once."""
    async with worlds_of(2) as (here, there):
        slow = group_of(there, 0)
        await connect(here, there)
        sent_before = spy.num_sends
        built, slow._group = slow._group, None
        slow._connected.clear()
        received = torch.zeros(NUMEL)
        moving = asyncio.gather(here.send(torch.ones(NUMEL), 1), there.recv(received, 0))
        await asyncio.sleep(0.05)
        assert not moving.done()
        assert spy.num_sends - sent_before == 1
        slow._group = built
        slow._connected.set()
        await asyncio.wait_for(moving, scaled(5))
        assert bool((received == 1).all())


async def test_a_receive_that_is_cancelled_while_gloo_moves_returns_in_time_and_nothing_writes_later(spy: Spy) -> None:
    """It may cost this world, as the docs say."""
    for attempt in range(6):
        async with worlds_of(2) as (here, there):
            await connect(here, there)
            source, buffer = torch.ones(LARGE_NUMEL), torch.full((LARGE_NUMEL,), -1.0)
            sending = asyncio.create_task(there.send(source, 0))
            receiving = asyncio.create_task(here.recv(buffer, 1))
            await asyncio.sleep(0.002 * attempt)
            begin = time.monotonic()
            receiving.cancel()
            await asyncio.wait([receiving])
            assert time.monotonic() - begin < CANCEL_S
            seen = buffer.clone()
            await asyncio.sleep(0.05)
            assert torch.equal(seen, buffer)
            sending.cancel()
            await asyncio.wait([sending])


async def test_aborting_while_gloo_moves_fails_both_sides_at_once(spy: Spy) -> None:
    for attempt in range(4):
        async with worlds_of(2) as (here, there):
            await connect(here, there)
            tensors = [torch.ones(LARGE_NUMEL) for _ in range(4)]
            moving = [
                asyncio.create_task(operation)
                for index in (0, 2)
                for operation in (here.send(tensors[index], 1), there.recv(tensors[index + 1], 0))
            ]
            await asyncio.sleep(0.004 * attempt)
            here.abort()
            outcomes = await asyncio.wait_for(asyncio.gather(*moving, return_exceptions=True), scaled(5))
            assert all(outcome is None or isinstance(outcome, mw.MultiworldError) for outcome in outcomes)
            assert isinstance(await asyncio.wait_for(there.wait_broken(), scaled(5)), mw.WorldBrokenError)


async def test_aborting_while_gloo_connects_leaves_nothing_behind(spy: Spy) -> None:
    for _ in range(3):
        spy.may_connect.clear()
        async with worlds_of(2) as (here, there):
            await exchange(here, there, 1.0)
            assert group_of(here, 1)._connecting is not None
            here.abort()
            await asyncio.wait_for(there.wait_broken(), scaled(5))
        spy.may_connect.set()


async def test_aborting_in_any_moment_while_gloo_connects_ends_its_threads_soon(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    """One rank may be about to connect while the other has given up already."""
    moments = random.Random(2)
    for trial in range(60):
        async with worlds_of(2) as worlds:
            await exchange(worlds[0], worlds[1], 1.0)
            await asyncio.to_thread(time.sleep, moments.uniform(0, 0.003))  # finer than a loop's timer
            worlds[trial % 2].abort()
            await asyncio.wait_for(worlds[1 - trial % 2].wait_broken(), scaled(5))
    assert await asyncio.to_thread(wait_until, nobody_connects, scaled(1))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


class LostPeerStore(Store):
    """What rank 0 meets rank 1 through that has said where it is, and is lost before it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        ours = bytes(value, "latin-1") if isinstance(value, str) else bytes(value)
        # Of two addresses the lower waits for the higher.
        theirs = ours.replace(socket.inet_aton("127.0.0.1"), socket.inet_aton("127.0.0.2"))
        self.values |= {key: ours, key.rpartition("/")[0] + "/1": theirs}

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        assert self.check(keys)

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def peek(self, key: str) -> bytes | None:
        return self.values.get(key)

    def close(self, error: BaseException) -> None:
        """It holds nobody up."""


def test_a_peer_that_is_lost_before_it_connects_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    group = gloo_group.GlooGroup("lonely", "127.0.0.1", leads=True, open_store=LostPeerStore)  # type: ignore[arg-type]
    group.connect()
    assert not group.join(0.3), "it waits for a peer that will not come"
    group.abort(RuntimeError("the peer is lost"))
    began = time.monotonic()
    gloo_group.reap_all([group])
    assert group.join(0)
    assert time.monotonic() - began < gloo_group.RELEASE_S
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def nobody_connects() -> bool:
    return not any(thread.name.endswith("-connect") for thread in threading.enumerate())


async def test_what_is_under_way_over_gloo_is_delivered_when_its_sender_leaves(spy: Spy) -> None:
    async with worlds_of(2) as (here, there):
        await connect(here, there)
        sending = [asyncio.create_task(here.send(torch.full((LARGE_NUMEL,), float(n)), 1)) for n in range(3)]
        await asyncio.sleep(0)
        leaving = asyncio.create_task(here.leave())
        for number in range(3):
            received = torch.zeros(LARGE_NUMEL)
            await asyncio.wait_for(there.recv(received, 0), scaled(10))
            assert bool((received == number).all())
        await asyncio.gather(*sending, leaving)
