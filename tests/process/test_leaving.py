"""Leaving a world and closing a manager: alone, several times at once, cancelled, and while others still wait."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch

import multiworld as mw
from multiworld.channel.stream.message_stream import MessageStream
from multiworld.testing import Deadline, scaled
from multiworld.wire.connection.connection import Connection
from multiworld.wire.connection.sink import ConnectionSink
from multiworld.wire.progress.operation import Operation, pass_on
from multiworld.world.links.peer_connections import PeerConnections
from multiworld.world.liveness import Cause, Lost

pytestmark = pytest.mark.usefixtures("no_leaks")

LARGE = 3_000_000  # float32; no socket buffer takes it all


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[list[mw.WorldManager], list[mw.World], str]]:
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        managers = [first, second]
        joins = [manager.join("w", rank, 2, url, backend="tcp") for rank, manager in enumerate(managers)]
        yield managers, list(await asyncio.gather(*joins)), url


async def send_large(world: mw.World) -> asyncio.Task[None]:
    """Start a send that the other side has not asked for yet."""
    sending = asyncio.create_task(world.send(torch.arange(float(LARGE)), 1))
    await asyncio.sleep(0.01)
    return sending


async def assert_received(world: mw.World) -> None:
    received = torch.empty(LARGE)
    await asyncio.wait_for(world.recv(received, 0), scaled(5))
    assert bool((received == torch.arange(float(LARGE))).all())


async def test_two_leaves_at_once_are_one_and_deliver_what_was_sent() -> None:
    async with pair() as (_, worlds, _):
        sending = await send_large(worlds[0])
        leaving = [asyncio.create_task(worlds[0].leave()) for _ in range(2)]
        await asyncio.sleep(0.05)
        await assert_received(worlds[1])
        await asyncio.gather(sending, *leaving)
        assert worlds[0].state is mw.WorldState.CLOSED


async def test_closing_the_manager_waits_for_a_leave_that_is_under_way() -> None:
    async with pair() as (managers, worlds, _):
        sending = await send_large(worlds[0])
        leaving = asyncio.create_task(worlds[0].leave())
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(managers[0].aclose())
        await asyncio.sleep(0.05)
        await assert_received(worlds[1])
        await asyncio.gather(sending, leaving, closing)


async def test_a_cancelled_leave_leaves_at_once_and_the_name_is_free() -> None:
    async with pair() as (managers, worlds, url):
        sending = await send_large(worlds[0])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(worlds[0].leave(), 0.05)
        assert isinstance(await asyncio.wait_for(worlds[1].wait_broken(), scaled(2)), mw.PeerLeftError)
        with pytest.raises(mw.WorldClosedError):
            await sending
        assert worlds[0].state is mw.WorldState.CLOSED
        joins = [manager.join("w", rank, 2, url, timeout_s=10) for rank, manager in enumerate(managers)]
        assert [world.generation for world in await asyncio.gather(*joins)] == [2, 2]


async def test_a_cancelled_close_closes_at_once_and_can_be_called_again() -> None:
    async with pair() as (managers, worlds, _):
        sending = await send_large(worlds[0])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(managers[0].aclose(), 0.05)
        with pytest.raises(mw.WorldClosedError):
            await asyncio.wait_for(sending, scaled(2))
        assert isinstance(await asyncio.wait_for(worlds[1].wait_broken(), scaled(2)), mw.PeerLeftError)
        await asyncio.wait_for(managers[0].aclose(), scaled(2))


async def test_many_closes_at_once_from_tasks_and_threads_all_return() -> None:
    async with pair() as (managers, _, _):
        threads = [threading.Thread(target=managers[0].close) for _ in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(asyncio.gather(*(managers[0].aclose() for _ in range(4))), scaled(5))
        for thread in threads:
            await asyncio.to_thread(thread.join, scaled(5))
            assert not thread.is_alive()


async def test_joins_under_way_end_when_their_manager_closes() -> None:
    async with mw.WorldManager() as host:
        url = host.serve_store("tcp://127.0.0.1:0")
        manager = mw.WorldManager()
        joins = [
            asyncio.create_task(manager.join("waiting", 0, 2, url)),
            asyncio.create_task(manager.join("no store", 0, 2, "tcp://127.0.0.1:9")),
        ]
        await asyncio.sleep(0.05)
        await manager.aclose()
        outcomes = await asyncio.wait_for(asyncio.gather(*joins, return_exceptions=True), scaled(2))
        assert [type(outcome) for outcome in outcomes] == [mw.JoinRefusedError] * 2


async def test_every_store_that_is_served_on_a_free_port_has_its_own() -> None:
    async with mw.WorldManager() as manager:
        urls = {manager.serve_store("tcp://127.0.0.1:0") for _ in range(3)}
        assert len(urls) == 3
        assert not any(url.endswith(":0") for url in urls)
        assert {manager.serve_store(url) for url in urls} == urls


async def test_nothing_keeps_the_connections_of_a_world_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that came before their world was known waited, and the deadline for that outlived them by half a minute."""
    expect = PeerConnections.expect_data

    def expect_late(
        connections: PeerConnections, uid: str, rank: int, sink: ConnectionSink, *, authenticated: bool
    ) -> Operation[Connection]:
        expected: Operation[Connection] = Operation()

        def expect_now() -> None:
            pass_on(expect(connections, uid, rank, sink, authenticated=authenticated), expected)

        connections._loop.call_later(0.05, expect_now)
        return expected

    monkeypatch.setattr(PeerConnections, "expect_data", expect_late)
    before = count_streams()
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        for number in range(3):
            joins = [
                manager.join(f"w{number}", rank, 2, url, backend="tcp") for rank, manager in enumerate((first, second))
            ]
            for world in await asyncio.gather(*joins):
                world.abort()
        del world, joins
        deadline = Deadline(5.0)
        while count_streams() > before and not deadline.expired:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.05)
        assert count_streams() == before


def count_streams() -> int:
    gc.collect()
    return sum(issubclass(type(each), MessageStream) for each in gc.get_objects())


@asynccontextmanager
async def left_beside_a_mute_peer() -> AsyncIterator[tuple[list[mw.WorldManager], mw.World, str]]:
    """Yield the managers of three ranks, rank 1's world, which rank 2 has left, and the store. Rank 0 ends nothing."""
    async with mw.WorldManager() as first, mw.WorldManager() as second, mw.WorldManager() as third:
        url = first.serve_store("tcp://127.0.0.1:0")
        managers = [first, second, third]
        joins = [manager.join("w", rank, 3, url, backend="tcp") for rank, manager in enumerate(managers)]
        worlds = await asyncio.gather(*joins)
        mute = worlds[0].channel._mesh.stream(1)  # type: ignore[union-attr]
        mute.connection._interest.set_reading(0)
        mute.finish = lambda: mute._ended
        await worlds[2].leave()
        assert isinstance(await asyncio.wait_for(worlds[1].wait_broken(), scaled(2)), mw.PeerLeftError)
        assert not worlds[1].parted.done
        yield managers, worlds[1], url
        mute.connection.abort()


@pytest.mark.sources
async def test_a_broken_world_is_left_in_the_given_time_though_a_peer_does_not_answer() -> None:
    async with left_beside_a_mute_peer() as (_, world, _):
        await asyncio.wait_for(world.leave(timeout_s=0.1), scaled(1))
        assert world.state is mw.WorldState.CLOSED


@pytest.mark.sources
async def test_a_peer_that_does_not_answer_keeps_nobody_from_the_next_generation() -> None:
    async with left_beside_a_mute_peer() as (managers, world, url), mw.WorldManager() as replacement:
        again = await asyncio.gather(
            managers[1].rejoin("w", timeout_s=scaled(2)),
            *(manager.join("w", rank, 3, url, backend="tcp") for rank, manager in ((0, replacement), (2, managers[2]))),
        )
        assert [each.generation for each in again] == [2, 2, 2]
        assert not world.parted.done
        await asyncio.gather(*(each.barrier() for each in again))


@pytest.mark.sources
async def test_a_peer_that_is_lost_is_not_waited_for() -> None:
    async with left_beside_a_mute_peer() as (managers, world, _):
        link = next(link for link in managers[1]._connections.links.values() if link.peer.id == managers[0]._id)
        lost = Lost(link.peer.id, Cause.DIED, "as the test says", 0.0)
        managers[1]._loop.call_soon(lambda: managers[1]._peer_lost(link, lost))
        await asyncio.wait_for(world.leave(), scaled(2))


async def assert_ended(leaving: asyncio.Task[None], sending: asyncio.Task[None]) -> None:
    await asyncio.wait({leaving, sending}, timeout=scaled(2))
    assert leaving.done()
    with pytest.raises(mw.WorldClosedError):
        await sending
    await asyncio.gather(leaving, return_exceptions=True)


async def test_a_leave_amid_another_takes_no_longer_than_it_may() -> None:
    async with pair() as (_, worlds, _):
        sending = await send_large(worlds[0])
        first = asyncio.create_task(worlds[0].leave(timeout_s=60))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(worlds[0].leave(timeout_s=0.1), scaled(2))
        assert worlds[0].state is mw.WorldState.CLOSED
        await assert_ended(first, sending)


async def test_a_cancelled_close_ends_a_leave_that_is_under_way() -> None:
    async with pair() as (managers, worlds, _):
        sending = await send_large(worlds[0])
        leaving = asyncio.create_task(worlds[0].leave(timeout_s=60))
        await asyncio.sleep(0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(managers[0].aclose(), 0.05)
        await assert_ended(leaving, sending)


async def test_a_peer_that_ends_hard_after_it_has_left_breaks_no_collective_that_can_end() -> None:
    async with mw.WorldManager() as first, mw.WorldManager() as second, mw.WorldManager() as third:
        url = first.serve_store("tcp://127.0.0.1:0")
        managers = [first, second, third]
        joins = [manager.join("w", rank, 3, url, backend="tcp") for rank, manager in enumerate(managers)]
        worlds = await asyncio.gather(*joins)
        late = worlds[2]
        await asyncio.gather(*(world.broadcast(torch.ones(8), 0) for world in worlds[:2]))
        await worlds[0].leave()
        entry = third._membership.entry_of(late)
        assert entry is not None
        deadline = Deadline(scaled(2))
        while 0 not in entry.leaving and not deadline.expired:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.005)
        link = next(link for link in third._connections.links.values() if link.peer.id == first._id)
        lost = Lost(link.peer.id, Cause.DIED, "as the test says", 0.0)
        third._loop.call_soon(lambda: third._peer_lost(link, lost))
        await asyncio.sleep(0.05)
        received = torch.zeros(8)
        await asyncio.wait_for(late.broadcast(received, 0), scaled(2))
        assert torch.equal(received, torch.ones(8))
        assert isinstance(await asyncio.wait_for(late.wait_broken(), scaled(2)), mw.PeerLeftError)


async def test_whoever_gives_up_waiting_for_a_break_is_forgotten() -> None:
    async with pair() as (_, worlds, _):
        before = len(worlds[0]._broken._callbacks or ())
        for _ in range(20):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(worlds[0].wait_broken(), 0.001)
        assert len(worlds[0]._broken._callbacks or ()) == before
