"""Connections after the handshake: with a token, what comes must be what the other end has said, and nothing else."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial

import pytest

from multiworld.testing import Relay, scaled, wait_until
from multiworld.wire.connection.connection import Connection
from multiworld.wire.connection.frames import Kind, pack_frame
from multiworld.wire.connection.records import ACCEPTOR, RecordWriter
from multiworld.wire.endpoints.dialer import dial
from multiworld.wire.endpoints.handshake import NONCE_BYTES, DialerHello, derive_key, prove
from multiworld.wire.endpoints.listener import Listener, Pending
from multiworld.wire.messages import decode
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from tests.raw_frames import hear
from tests.unit.wire.connected import Sink, message

TOKEN = b"0123456789abcdef"
NOT_TRUE = "does not verify: on its way it was changed"
SIZES = (1, 100, 60_000, 65_516, 65_517, 300_000, 5_000_000)


class Ends:
    """Both ends of one connection, through a relay."""

    def __init__(self, loop: ProgressThread, token: bytes) -> None:
        self._loop, self._token = loop, token
        self.dialer_sink, self.acceptor_sink = Sink(), Sink()
        self.taken: list[Pending] = []
        self.listener = Listener(loop, "127.0.0.1", 0, token, {"sink": self._take})
        self.relay = Relay("127.0.0.1", self.listener.port)

    def connect(self) -> None:
        at = (self.relay.host, self.relay.port)
        dialing = dial(self._loop, *at, DialerHello(purpose="sink"), self._token, self.dialer_sink, timeout_s=scaled(5))
        self.dialer: Connection = wait_blocking(dialing)
        assert wait_until(lambda: bool(self.taken), timeout_s=5)
        self.acceptor = self.taken[0].connection

    def _take(self, pending: Pending) -> None:
        self.taken.append(pending)
        pending.accept(self.acceptor_sink)


@pytest.fixture
def loop(no_leaks: None) -> Iterator[ProgressThread]:
    loop = ProgressThread("test-authenticated")
    yield loop
    loop.stop()


def connected(loop: ProgressThread, token: bytes = TOKEN) -> Iterator[Ends]:
    ends = Ends(loop, token)
    with ends.relay:
        ends.connect()
        yield ends
        for connection in (ends.dialer, ends.acceptor):
            connection.abort()
        loop.call_soon(ends.listener.close)


@pytest.fixture
def ends(loop: ProgressThread) -> Iterator[Ends]:
    yield from connected(loop)


def send_all(sender: Connection, sizes: tuple[int, ...]) -> list[bytes]:
    payloads = [bytes([size % 251, seq]) * (size // 2) + b"x" * (size % 2) for seq, size in enumerate(sizes)]
    for seq, payload in enumerate(payloads):
        sender.send(message(payload, seq, b"meta"), payload)
    return payloads


def test_frames_of_all_sizes_come_through_both_ways(ends: Ends) -> None:
    for sender, sink in ((ends.dialer, ends.acceptor_sink), (ends.acceptor, ends.dialer_sink)):
        payloads = send_all(sender, SIZES)
        assert wait_until(lambda sink=sink: len(sink.frames) == len(SIZES), timeout_s=20)  # type: ignore[misc]
        assert [payload for _, _, payload in sink.frames] == payloads
        assert {meta for _, meta, _ in sink.frames} == {b"meta"}


def test_what_is_said_is_on_the_wire_as_it_was_said(ends: Ends) -> None:
    """It authenticates, and hides nothing."""
    before = ends.relay.num_bytes["to_server"]
    ends.dialer.send(pack_frame(Kind.CONTROL, b"hello"))
    assert wait_until(lambda: len(ends.acceptor_sink.frames) == 1, timeout_s=5)
    assert ends.relay.num_bytes["to_server"] - before == 20 + 32 + 5


@pytest.mark.parametrize("put_in", [pack_frame(Kind.HEARTBEAT), b"\x05\x00\x00\x00" + bytes(21), bytes(64)])
@pytest.mark.parametrize("path", ["to_server", "to_client"])
def test_what_is_put_in_ends_the_connection(ends: Ends, put_in: bytes, path: str) -> None:
    sender, sink = (ends.dialer, ends.acceptor_sink) if path == "to_server" else (ends.acceptor, ends.dialer_sink)
    receiver = ends.acceptor if path == "to_server" else ends.dialer
    sender.send(pack_frame(Kind.CONTROL, b"before"))
    assert wait_until(lambda: len(sink.frames) == 1, timeout_s=5)
    ends.relay.inject(put_in, path)  # type: ignore[arg-type]
    sender.send(pack_frame(Kind.CONTROL, b"behind"))
    assert wait_until(lambda: bool(sink.lost_reasons), timeout_s=5)
    assert f"record 1 {NOT_TRUE}" in sink.lost_reasons[0]
    assert receiver.lost_errno == errno.EBADMSG
    assert [meta for _, meta, _ in sink.frames] == [b"before"]


def test_a_cancelled_send_goes_on_from_a_copy(ends: Ends) -> None:
    """Of what has a tag already, and of what has none yet: the memory may change behind it."""
    owner = object()
    payload = bytearray(b"a" * 8_000_000)
    ends.relay.freeze("to_server")
    ends.dialer.send(message(payload), memoryview(payload), on_sent=partial(lambda owner: None, owner))
    ends.dialer.detach_unsent(owner)
    payload[:] = b"b" * len(payload)
    ends.relay.thaw("to_server")
    assert wait_until(lambda: bool(ends.acceptor_sink.frames), timeout_s=20)
    assert ends.acceptor_sink.frames[0][2] == b"a" * len(payload)


def test_without_a_token_there_is_nothing_to_authenticate_with(loop: ProgressThread) -> None:
    for ends in connected(loop, b""):
        ends.relay.inject(pack_frame(Kind.HEARTBEAT), "to_server")
        assert wait_until(lambda ends=ends: len(ends.acceptor_sink.frames) == 1, timeout_s=5)  # type: ignore[misc]


def plain(key: bytes) -> bytes:
    return pack_frame(Kind.CONTROL, b"put in")


def authentic(key: bytes) -> bytes:
    return RecordWriter(key, ACCEPTOR).write(pack_frame(Kind.CONTROL, b"said"))


@pytest.mark.parametrize(("behind", "heard"), [(plain, []), (authentic, [b"said"])])
def test_what_stands_right_behind_the_acceptance_must_be_a_record(
    loop: ProgressThread, behind: Callable[[bytes], bytes], heard: list[bytes]
) -> None:
    """It comes in one piece with it, before the dialer can know that it has been let in."""
    sink = Sink()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(accept_one, server, behind)
        port = server.getsockname()[1]
        connection = wait_blocking(
            dial(loop, "127.0.0.1", port, DialerHello(purpose="sink"), TOKEN, sink, timeout_s=scaled(5))
        )
        assert wait_until(lambda: bool(sink.frames if heard else sink.lost_reasons), timeout_s=5)
        assert [meta for _, meta, _ in sink.frames] == heard
        assert heard or f"record 0 {NOT_TRUE}" in sink.lost_reasons[0]
        connection.abort()
        serving.result()


def accept_one(server: socket.socket, behind: Callable[[bytes], bytes]) -> None:
    sock, _ = server.accept()
    with closing(sock):
        sock.settimeout(scaled(5))
        _, hello = hear(sock)
        ours, theirs = b"n" * NONCE_BYTES, bytes.fromhex(decode(DialerHello, hello).nonce)
        sock.sendall(pack_frame(Kind.CHALLENGE, ours))
        assert hear(sock) == (Kind.PROOF, prove(TOKEN, b"dialer", hello, theirs, ours))
        acceptance = pack_frame(Kind.ACCEPTED, prove(TOKEN, b"acceptor", hello, theirs, ours))
        sock.sendall(acceptance + behind(derive_key(TOKEN, hello, theirs, ours)))
        with suppress(ConnectionError):
            while sock.recv(1024):
                pass
