"""Abuse of the ports of a manager and a store while a world works: strangers are thrown out, and nobody notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

import multiworld as mw
from multiworld.store.state import Request, pack_strings
from multiworld.testing import measure, scaled, wait_until
from multiworld.wire.connection.frames import HEADER_BYTES, Kind, pack_frame, pack_header
from multiworld.wire.endpoints.admission import MAX_UNPROVEN
from multiworld.wire.endpoints.handshake import NONCE_BYTES, PROTOCOL_VERSION, DialerHello, prove
from multiworld.wire.endpoints.listener import Pending
from multiworld.wire.messages import encode
from multiworld.world.links.peers import PeerInfo
from tests.raw_frames import hear

pytestmark = pytest.mark.usefixtures("no_leaks")

NOISE = random.Random(7).randbytes(50_000)


def num_sockets() -> int:
    return sum(descriptor.startswith("socket:") for descriptor in measure().descriptors)


class Stranger:
    """A raw connection to a port of ours."""

    def __init__(self, address: tuple[str, int], target: Target) -> None:
        self.target = target
        self.sock = socket.create_connection(address, timeout=scaled(3))

    def say(self, *words: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # being thrown out is right
            for word in words:
                self.sock.sendall(word)

    def hear(self) -> tuple[int, bytes]:
        """Return kind and meta of the next frame."""
        return hear(self.sock)

    def hello(self, **fields: Any) -> bytes:
        return json.dumps({"version": PROTOCOL_VERSION, "nonce": "00" * NONCE_BYTES, **fields}).encode()

    def shake_hands(self, **fields: Any) -> tuple[int, bytes]:
        """Do what a member does; return what the acceptor says at last."""
        self.prove(**fields)
        return self.hear()

    def prove(self, **fields: Any) -> None:
        """Say HELLO and answer the challenge."""
        hello = self.hello(**fields)
        self.say(pack_frame(Kind.HELLO, hello))
        kind, challenge = self.hear()
        assert kind == Kind.CHALLENGE
        proof = prove(b"", b"dialer", hello, bytes(NONCE_BYTES), challenge[:NONCE_BYTES])
        self.say(pack_frame(Kind.PROOF, proof))

    def link(self, **changes: Any) -> tuple[int, bytes]:
        """Shake hands as a peer that wants a link."""
        peer = PeerInfo.of_this_process(os.urandom(16).hex(), "127.0.0.1", 1).to_json().decode()
        fields = {"purpose": "link", "job": "default", "to": self.target.manager_id, "peer": peer, "heartbeat_s": 0.5}
        return self.shake_hands(**{**fields, **changes})

    def is_thrown_out(self) -> bool:
        """Whether the other side closes, however much it still says."""
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def vanish(self) -> None:
        """Go away without a word."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Target:
    """Two managers with a world that works all the time; ``store`` and ``member`` are the addresses of one's ports."""

    def __init__(self, first: mw.WorldManager, second: mw.WorldManager, url: str) -> None:
        self.managers, self.url = (first, second), url
        self.manager_id = first._id
        self.store = ("127.0.0.1", int(url.rpartition(":")[2]))
        self.member = ("127.0.0.1", next(iter(first._connections._listeners.values())).port)
        self.rounds = 0
        self.worked = asyncio.Event()

    async def work(self, worlds: list[mw.World]) -> None:
        while True:
            tensors = [torch.full((1000,), float(rank)) for rank in range(2)]
            received = torch.empty(1000)
            await asyncio.gather(
                worlds[0].send(tensors[0] + self.rounds, 1),
                worlds[1].recv(received, 0),
                *(world.all_reduce(tensor) for world, tensor in zip(worlds, tensors, strict=True)),
            )
            assert bool((received == self.rounds).all())
            assert all(bool((tensor == 1).all()) for tensor in tensors)
            self.rounds += 1
            self.worked.set()

    async def still_works(self) -> None:
        """The old world goes on, and a new one can be formed."""
        for _ in range(3):
            self.worked.clear()
            await asyncio.wait_for(self.worked.wait(), scaled(10))
        worlds = await asyncio.gather(
            *(manager.join("another", rank, 2, self.url, timeout_s=10) for rank, manager in enumerate(self.managers))
        )
        await asyncio.gather(*(world.leave() for world in worlds))


@asynccontextmanager
async def working_world() -> AsyncIterator[Target]:
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        worlds = list(await asyncio.gather(first.join("w", 0, 2, url), second.join("w", 1, 2, url)))
        target = Target(first, second, url)
        working = asyncio.create_task(target.work(worlds))
        try:
            yield target
            assert not working.done(), working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def frame(kind: int, meta: bytes) -> bytes:
    return pack_frame(kind, meta)


BEFORE_THE_HANDSHAKE: dict[str, bytes] = {
    "noise": NOISE,
    "zeros": bytes(50_000),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "tls": bytes.fromhex("16030100a5010000a10303") + NOISE[:160],
    "oversized header": pack_header(Kind.HELLO, meta_bytes=2**31),
    "oversized payload": pack_header(Kind.HELLO, payload_bytes=2**60),
    "payload in a hello": pack_header(Kind.HELLO, meta_bytes=2, payload_bytes=10) + b"{}" + bytes(10),
    "unknown kind": pack_header(250),
    "tensor without a handshake": pack_header(Kind.MESSAGE, payload_bytes=4, tag=1, seq=1) + bytes(4),
    "store request without a handshake": frame(Kind.STORE_REQUEST, pack_strings([b"key"])),
    "proof without a hello": frame(Kind.PROOF, bytes(32)),
    "hello that is no record": frame(Kind.HELLO, b"\xff\xfe"),
    "hello that is a list": frame(Kind.HELLO, b"[1]"),
    "hello that is nested": frame(Kind.HELLO, b'{"a":' * 800),
    "hello without a nonce": frame(Kind.HELLO, encode(DialerHello(version=PROTOCOL_VERSION))),
    "hello of another version": frame(Kind.HELLO, encode(DialerHello(version=999, nonce="00"))),
    "two hellos": 2 * frame(Kind.HELLO, encode(DialerHello(version=PROTOCOL_VERSION, nonce="00"))),
}


@pytest.mark.parametrize("words", BEFORE_THE_HANDSHAKE.values(), ids=BEFORE_THE_HANDSHAKE.keys())
async def test_words_that_are_not_ours_are_answered_by_closing(words: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with working_world() as target:

        def attack() -> None:
            for address in (target.store, target.member):
                stranger = Stranger(address, target)
                stranger.say(words[:7], words[7:])
                assert stranger.is_thrown_out()
                stranger.sock.close()

        before = num_sockets()
        await asyncio.to_thread(attack)
        assert len([record for record in caplog.records if record.name == "multiworld.wire.connection.connection"]) or (
            "multiworld.wire.endpoints.listener" in {record.name for record in caplog.records}
        ), "the reason is logged"
        assert "Traceback" not in caplog.text
        await target.still_works()
        assert await asyncio.to_thread(wait_until, lambda: num_sockets() <= before, 5)


def wrong_proof(stranger: Stranger) -> None:
    stranger.say(pack_frame(Kind.HELLO, stranger.hello(purpose="store")))
    assert stranger.hear()[0] == Kind.CHALLENGE
    stranger.say(pack_frame(Kind.PROOF, bytes(32)))
    kind, meta = stranger.hear()
    assert (kind, json.loads(meta)["cause"]) == (Kind.REFUSED, "token")
    assert "tokens differ" in json.loads(meta)["reason"]
    stranger.say(*[pack_frame(Kind.PROOF, bytes(32))] * 50)  # it is not answered again and again


def unknown_purpose(stranger: Stranger) -> None:
    kind, meta = stranger.shake_hands(purpose="coffee")
    assert (kind, json.loads(meta)["reason"]) == (Kind.REFUSED, "nobody here serves 'coffee'")


def bad_records(stranger: Stranger) -> None:
    """Ask for links and data connections with fields of all kinds; each is refused with a reason."""
    target = stranger.target
    peer = PeerInfo.of_this_process("ab" * 16, "127.0.0.1", 1).to_json().decode()
    changed = [json.dumps({**json.loads(peer), key: None}) for key in ("id", "host", "port", "pid", "host_id")]
    asked: list[dict[str, Any]] = [
        {"job": "other"},
        {"job": None},
        {"to": "somebody who was here before"},
        {"peer": None},
        {"peer": "{}"},
        {"peer": "[]"},
        *({"peer": record} for record in changed),
        {"heartbeat_s": None},
        {"heartbeat_s": "soon"},
        {"heartbeat_s": []},
        {"purpose": "data"},
        {"purpose": "data", "world": "w", "rank": "first"},
        {"purpose": "data", "world": {}, "rank": 1},
    ]
    for changes in asked:
        another = Stranger(target.member, target)
        kind, meta = another.link(**changes)
        assert kind == Kind.REFUSED, (changes, kind)
        assert json.loads(meta)["reason"]
        another.sock.close()
    stranger.say(b"so much for that, goodbye then" * 2)


def bad_news(stranger: Stranger) -> None:
    """Tell nonsense over links that were made as they should be."""
    target = stranger.target
    news: list[tuple[int, bytes]] = [
        (Kind.READY, b"{}"),
        (Kind.READY, b'{"world": "x", "rank": "first"}'),
        (Kind.READY, b'{"world": "x", "rank": null}'),
        (Kind.REVOKE, b'{"world": "x"}'),
        (Kind.REVOKE, b'{"world": 5, "rank": 0, "cause": "", "detail": "", "by": 1}'),
        (Kind.LEFT, b'{"world": "x", "rank": [0]}'),
        (Kind.SENTINEL, b'{"host": "nowhere"}'),
        (Kind.SENTINEL, b'{"host": "127.0.0.1", "port": "x"}'),
        (Kind.GOODBYE, b"bye"),
        (Kind.READY, b"[" * 2000),
        (Kind.HELLO, b"{}"),
        (Kind.CREDIT, b"{}"),
        (Kind.STORE_REQUEST, b""),
    ]
    for kind, meta in news:
        another = Stranger(target.member, target)
        assert another.link()[0] == Kind.ACCEPTED
        another.say(pack_frame(kind, meta))
        assert another.is_thrown_out(), (kind, meta)
        another.sock.close()
    stranger.say(b"so much for that, goodbye then" * 2)


def bad_requests(stranger: Stranger) -> None:
    """Talk nonsense to the store as a client that it has let in."""
    target = stranger.target
    sayings = [
        pack_frame(Kind.STORE_REQUEST, b"\x05\x00\x00\x00ab", tag=Request.GET),
        pack_frame(Kind.STORE_REPLY, b"", tag=0),
        pack_frame(Kind.HEARTBEAT),
        pack_header(Kind.STORE_REQUEST, payload_bytes=5) + b"abcde",
        pack_header(Kind.STORE_REQUEST, meta_bytes=2**31),
        NOISE,
    ]
    for words in sayings:
        another = Stranger(target.store, target)
        assert another.shake_hands(purpose="store")[0] == Kind.ACCEPTED
        another.say(words)
        assert another.is_thrown_out()
        another.sock.close()
    another = Stranger(target.store, target)
    assert another.shake_hands(purpose="store")[0] == Kind.ACCEPTED
    for tag in (0, 99, Request.WAIT, Request.ADD):
        another.say(pack_frame(Kind.STORE_REQUEST, pack_strings([b"-1"]), tag=tag, seq=3))
        assert another.hear()[0] == Kind.STORE_REPLY, "what is invalid is answered so"
    another.say(pack_header(Kind.STORE_REQUEST, meta_bytes=100) + b"only a part")
    another.vanish()
    stranger.say(b"so much for that, goodbye then" * 2)


def vanishing(stranger: Stranger) -> None:
    """Go away in the middle of everything."""
    target = stranger.target
    hello = stranger.hello(purpose="store")
    whole = pack_frame(Kind.HELLO, hello)
    for address in (target.store, target.member):
        for length in (0, 1, 2, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 5, len(whole) - 1, len(whole)):
            another = Stranger(address, target)
            another.say(whole[:length])
            another.vanish()
        another = Stranger(address, target)
        another.say(whole)
        another.hear()
        another.vanish()
        another = Stranger(address, target)
        another.say(whole)
        another.sock.shutdown(socket.SHUT_WR)
        assert another.is_thrown_out()
        another.sock.close()
    stranger.say(b"so much for that, goodbye then" * 2)


@pytest.mark.parametrize(
    "abuse",
    [wrong_proof, unknown_purpose, bad_records, bad_news, bad_requests, vanishing],
    ids=lambda abuse: abuse.__name__,
)
async def test_abuse_by_those_who_know_the_protocol_harms_nobody(
    abuse: Callable[[Stranger], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with working_world() as target:

        def attack() -> None:
            for address in (target.store, target.member):
                stranger = Stranger(address, target)
                abuse(stranger)
                assert stranger.is_thrown_out()
                stranger.sock.close()

        before = num_sockets()
        await asyncio.to_thread(attack)
        assert "Traceback" not in caplog.text
        await target.still_works()
        assert await asyncio.to_thread(wait_until, lambda: num_sockets() <= before, 5)


async def test_those_who_say_nothing_are_dropped_in_time_and_hold_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with working_world() as target:
        silent = [Stranger(address, target) for address in (target.store, target.member) for _ in range(3)]
        half = Stranger(target.member, target)
        half.say(b"MW")
        started = time.monotonic()
        await target.still_works()
        for stranger in (*silent, half):
            stranger.sock.settimeout(scaled(8))
            assert await asyncio.to_thread(stranger.is_thrown_out)
            stranger.sock.close()
        assert time.monotonic() - started < scaled(8)
        assert "no handshake within 5 s" in caplog.text


async def test_a_data_connection_that_is_called_twice_is_refused() -> None:
    """Whoever recorded how a member called can say the same again."""
    async with working_world() as target:
        fields = {"purpose": "data", "job": "default", "world": "ab" * 16, "rank": 1}

        def call_again_and_again() -> None:
            first = Stranger(target.member, target)
            first.prove(**fields)
            assert wait_until(lambda: "ab" * 16 in target.managers[0]._connections._called, timeout_s=5)
            for gone in (False, True):
                if gone:  # which makes no room for the next
                    first.vanish()
                another = Stranger(target.member, target)
                kind, meta = another.shake_hands(**fields)
                another.sock.close()
                assert kind == Kind.REFUSED
                assert json.loads(meta)["reason"] == "that rank of that world has called already"

        await asyncio.to_thread(call_again_and_again)
        await target.still_works()


async def test_of_a_world_that_is_over_nobody_keeps_who_called() -> None:
    async def leave(world: mw.World) -> None:
        await world.leave()

    async def abort(world: mw.World) -> None:
        world.abort()

    async with working_world() as target:
        boards = [manager._connections for manager in target.managers]
        before = [set(board._called) for board in boards]
        assert sum(map(len, before)) == 1
        for end in (leave, abort):
            for enders in ([0], [1], [0, 1]):
                joins = (manager.join("brief", rank, 2, target.url) for rank, manager in enumerate(target.managers))
                worlds = await asyncio.gather(*joins)
                assert sum(len(board._called) for board in boards) == 2
                await asyncio.gather(*(end(worlds[rank]) for rank in enders))
                await asyncio.gather(*(world.wait_broken() for world in worlds if world.rank not in enders))
                assert await asyncio.to_thread(
                    wait_until, lambda: [set(board._called) for board in boards] == before, 5
                )


async def test_linked_processes_challenge_each_other_once(challenges: list[Pending]) -> None:
    async with working_world() as target:
        assert {"link", "store"} <= {pending.purpose for pending in challenges}
        challenges.clear()
        await target.still_works()
        assert not challenges


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
async def test_a_thousand_connections_keep_nobody_out() -> None:
    async with working_world() as target:
        before = num_sockets()
        crowd: list[Stranger] = []

        def come() -> None:
            crowd.extend(Stranger(target.store if index % 2 else target.member, target) for index in range(1000))

        await asyncio.to_thread(come)
        await target.still_works()
        held = num_sockets() - before - len(crowd)
        assert held <= 2 * MAX_UNPROVEN + 50
        for stranger in crowd:
            stranger.vanish()
        assert await asyncio.to_thread(wait_until, lambda: num_sockets() <= before, 5)


@pytest.mark.parametrize(("host_token", "token"), [(None, "secret"), ("secret", None), ("secret", "secret ")])
async def test_a_token_that_only_one_side_has_is_refused_at_once(host_token: str | None, token: str | None) -> None:
    async with mw.WorldManager(token=host_token) as host, mw.WorldManager(token=token) as guest:
        url = host.serve_store("tcp://127.0.0.1:0")
        before = num_sockets()
        started = time.monotonic()
        with pytest.raises(mw.JoinRefusedError, match="tokens differ"):
            await guest.join("w", 1, 2, url, timeout_s=30)
        assert time.monotonic() - started < scaled(1)
        assert guest.worlds == {}
        assert await asyncio.to_thread(wait_until, lambda: num_sockets() <= before, 5)
        async with mw.WorldManager(token=host_token) as right:
            await asyncio.gather(host.join("w", 0, 2, url), right.join("w", 1, 2, url))


async def test_another_service_at_the_address_of_the_store_costs_no_more_than_the_time_given() -> None:
    """A server that talks first, as SSH does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(scaled(5))

        def greet() -> None:
            with contextlib.suppress(TimeoutError, OSError):
                while True:
                    client, _ = server.accept()
                    client.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                    client.close()

        async with mw.WorldManager() as manager:
            greeting = asyncio.create_task(asyncio.to_thread(greet))
            with pytest.raises(mw.JoinError, match=r"did not answer.*; start what serves it, or raise timeout_s"):
                await manager.join("w", 0, 2, f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5)
            server.close()
            await greeting
