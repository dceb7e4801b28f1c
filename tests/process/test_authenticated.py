"""Worlds whose connections somebody on the path writes into: nothing put in is believed, and the world breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
import torch

import multiworld as mw
from multiworld.channel.tcp import TcpChannel
from multiworld.testing import scaled
from multiworld.wire.connection.connection import Connection
from multiworld.wire.connection.frames import Kind, pack_frame, pack_header
from multiworld.world.links.messages import WorldRevoked, pack_message

pytestmark = pytest.mark.usefixtures("no_leaks")

TOKEN = "0123456789abcdef"
HERE = "tests.process.test_authenticated"
SIZES = (1, 10_000, 200_000, 3_000_001)


class AuthenticatedTcp(TcpChannel):
    """As ``authenticated`` is between hosts."""

    name: ClassVar[str] = "authenticated tcp"
    authenticates: ClassVar[bool] = True


@asynccontextmanager
async def worlds(backend: str) -> AsyncIterator[tuple[mw.World, mw.World]]:
    async with mw.WorldManager(token=TOKEN) as first, mw.WorldManager(token=TOKEN) as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        one, two = await asyncio.gather(
            first.join("w", 0, 2, url, backend=backend), second.join("w", 1, 2, url, backend=backend)
        )
        yield one, two


def put_in(connection: Connection, data: bytes) -> None:
    """As somebody on the path does, to whom the other end listens."""
    connection.sock.send(data)


def links(world: mw.World) -> Iterable[Connection]:
    return [link._connection for link in world._owner._connections.links.values()]  # type: ignore[attr-defined]


def data_connections(world: mw.World) -> Iterable[Connection]:
    return [stream.connection for stream in world._channel._mesh._streams.values()]  # type: ignore[union-attr]


REVOKE = pack_message(WorldRevoked(world="w", rank=0, cause="died", detail="", by=0))
TENSOR = pack_header(Kind.MESSAGE, meta_bytes=1, payload_bytes=100, tag=0, seq=1) + bytes(101)


@pytest.mark.parametrize(
    ("connections", "words", "error"),
    [(links, REVOKE, mw.PeerUnreachableError), (data_connections, TENSOR, mw.WorldBrokenError)],
    ids=["link", "data connection"],
)
async def test_what_is_put_in_breaks_the_world_and_says_why(
    connections: Callable[[mw.World], Iterable[Connection]], words: bytes, error: type[Exception]
) -> None:
    async with worlds(f"{HERE}:AuthenticatedTcp") as (one, two):
        await asyncio.gather(one.send(torch.ones(3), 1), two.recv(torch.empty(3), 0))
        receiving = asyncio.ensure_future(two.recv(torch.empty(3), 0, timeout_s=scaled(10)))
        await asyncio.sleep(0)
        for connection in connections(one):
            put_in(connection, words)
        with pytest.raises(error, match="does not verify: on its way it was changed, put in"):
            await receiving


async def test_tensors_of_all_sizes_come_through_records() -> None:
    async with worlds(f"{HERE}:AuthenticatedTcp") as (one, two):
        for size in SIZES:
            sent, received = torch.arange(size, dtype=torch.int32), torch.empty(size, dtype=torch.int32)
            await asyncio.gather(one.send(sent, 1), two.recv(received, 0))
            assert torch.equal(sent, received)
            totals = [torch.full((size,), float(rank)) for rank in (1, 2)]
            await asyncio.gather(*(world.all_reduce(total) for world, total in zip((one, two), totals, strict=True)))
            assert all(bool((total == 3).all()) for total in totals)
        tensors = {"a": torch.ones(5), "b": torch.zeros(70_000)}
        _, came = await asyncio.gather(one.send_tensors(tensors, 1), two.recv_tensors(0))
        assert {name: tensor.sum().item() for name, tensor in came.items()} == {"a": 5.0, "b": 0.0}  # type: ignore[union-attr]


async def test_on_one_host_the_channel_moves_tensors_as_the_default_does() -> None:
    async with worlds("authenticated") as (one, two):
        received = torch.empty(100_000)
        await asyncio.gather(one.send(torch.ones(100_000), 1), two.recv(received, 0))
        assert bool((received == 1).all())
        assert all(connection.is_local for connection in data_connections(one))


async def test_without_a_token_nothing_can_be_authenticated() -> None:
    async with mw.WorldManager() as manager:
        url = manager.serve_store("tcp://127.0.0.1:0")
        with pytest.raises(mw.JoinRefusedError, match="backend 'authenticated' needs a secret"):
            await manager.join("w", 0, 2, url, backend="authenticated", timeout_s=5)


async def test_a_request_that_is_put_in_ends_a_connection_to_the_store() -> None:
    async with mw.WorldManager(token=TOKEN) as host, mw.WorldManager(token=TOKEN) as guest:
        url = host.serve_store("tcp://127.0.0.1:0")
        joins = (host.join("w", 0, 2, url), guest.join("w", 1, 2, url))
        one, _ = await asyncio.gather(*joins)
        store = guest._stores._clients[url]
        assert store._connection is not None
        put_in(store._connection, pack_frame(Kind.STORE_REQUEST, b"", tag=5, seq=7))
        again = await asyncio.gather(host.join("v", 0, 2, url), guest.join("v", 1, 2, url))  # over a new one
        assert store.lost_reason is not None
        assert one.state.value == "active"
        await asyncio.gather(*(world.leave() for world in again))
