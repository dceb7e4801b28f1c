"""Dialling and listening on loopback: who proves what to whom, with a challenge or by the key of a link."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest

from multiworld.channel import attach_socket
from multiworld.errors import HandshakeError, TokenError
from multiworld.testing import scaled, wait_until
from multiworld.wire.connection.connection import Connection
from multiworld.wire.connection.frames import Kind, pack_frame
from multiworld.wire.endpoints.dialer import DialError, dial
from multiworld.wire.endpoints.handshake import (
    NONCE_BYTES,
    PROTOCOL_VERSION,
    DialerHello,
    HandshakeRefused,
    Voucher,
    derive_key,
    prove,
)
from multiworld.wire.endpoints.listener import Listener, Pending
from multiworld.wire.messages import decode, encode
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from tests.raw_frames import hear
from tests.unit.wire.connected import Sink

TOKEN, KEY = b"secret", b"k" * 32
PEER = "peer-1"


class Acceptor:
    """A listener that takes whoever asks for ``sink``, and how the handshakes went."""

    def __init__(self, loop: ProgressThread, key: bytes) -> None:
        self.key, self.taken = key, list[Pending]()
        self.sink = Sink()
        self._loop = loop
        self.listener = Listener(loop, "127.0.0.1", 0, TOKEN, {"sink": self._take}, self._key_of)

    def dial(self, token: bytes = TOKEN, voucher: Voucher | None = None) -> Connection:
        operation = dial(
            self._loop,
            "127.0.0.1",
            self.listener.port,
            DialerHello(purpose="sink"),
            token,
            Sink(),
            timeout_s=scaled(5),
            voucher=voucher,
        )
        return wait_blocking(operation)

    @property
    def num_unproven(self) -> int:
        return len(self.listener._unproven)

    def _key_of(self, peer: str) -> bytes:
        return self.key if peer == PEER else b""

    def _take(self, pending: Pending) -> None:
        self.taken.append(pending)
        pending.accept(self.sink)


@pytest.fixture
def loop(no_leaks: None) -> Iterator[ProgressThread]:
    loop = ProgressThread("test-dialing")
    yield loop
    loop.stop()


@pytest.fixture
def acceptor(loop: ProgressThread) -> Iterator[Acceptor]:
    acceptor = Acceptor(loop, KEY)
    yield acceptor
    for pending in acceptor.taken:
        pending.connection.abort()
    loop.call_soon(acceptor.listener.close)


def test_both_ends_of_a_challenge_share_a_key_that_is_new_each_time(acceptor: Acceptor) -> None:
    one, two = acceptor.dial(), acceptor.dial()
    assert [pending.connection.key for pending in acceptor.taken] == [one.key, two.key]
    assert len(one.key) == 32
    assert one.key != two.key


def test_a_key_depends_on_the_token_and_both_nonces() -> None:
    key = derive_key(TOKEN, b"{}", b"1", b"2")
    others = [derive_key(*changed) for changed in ((b"", b"{}", b"1", b"2"), (TOKEN, b"{}", b"3", b"2"))]
    others += [derive_key(TOKEN, b"{}", b"1", b"3"), derive_key(TOKEN, b"{1}", b"1", b"2")]
    others += [prove(TOKEN, role, b"{}", b"1", b"2") for role in (b"dialer", b"acceptor")]  # those are on the wire
    assert key not in others


def test_who_has_the_key_of_a_link_needs_no_challenge(acceptor: Acceptor, challenges: list[Pending]) -> None:
    connection = acceptor.dial(voucher=Voucher(PEER, KEY))
    assert not challenges
    connection.send(pack_frame(Kind.HEARTBEAT))
    assert wait_until(lambda: len(acceptor.sink.frames) == 1, timeout_s=5)
    assert acceptor.num_unproven == 0


@pytest.mark.parametrize("voucher", [Voucher(PEER, b"x" * 32), Voucher("unknown", KEY), Voucher(PEER, b"")])
def test_who_has_another_key_is_challenged_as_ever(
    acceptor: Acceptor, challenges: list[Pending], voucher: Voucher
) -> None:
    connection = acceptor.dial(voucher=voucher)
    assert len(challenges) == 1
    assert connection.key == acceptor.taken[0].connection.key != b""


def test_without_a_link_no_key_is_right(loop: ProgressThread, acceptor: Acceptor, challenges: list[Pending]) -> None:
    """Above all not the empty one, with which a stranger could make a proof."""
    acceptor.key = b""
    hello = encode(DialerHello(purpose="sink", by=PEER, version=PROTOCOL_VERSION, nonce="00" * NONCE_BYTES))
    proof = prove(b"", b"dialer", hello, bytes(NONCE_BYTES), b"")
    with closing(socket.create_connection(("127.0.0.1", acceptor.listener.port), timeout=scaled(5))) as stranger:
        stranger.sendall(pack_frame(Kind.HELLO, hello) + pack_frame(Kind.PROOF, proof))
        assert hear(stranger)[0] == Kind.CHALLENGE
        stranger.sendall(pack_frame(Kind.PROOF, proof))
        kind, meta = hear(stranger)
    assert (kind, "tokens differ" in decode(HandshakeRefused, meta).reason) == (Kind.REFUSED, True)
    assert not acceptor.taken


def test_the_acceptor_proves_nothing_to_who_has_not(acceptor: Acceptor) -> None:
    """A stranger that had its proof would try tokens at home; so a guess costs a connection."""
    hello = encode(DialerHello(purpose="sink", version=PROTOCOL_VERSION, nonce="00" * NONCE_BYTES))
    with closing(socket.create_connection(("127.0.0.1", acceptor.listener.port), timeout=scaled(5))) as stranger:
        stranger.sendall(pack_frame(Kind.HELLO, hello))
        kind, nonce = hear(stranger)
        assert (kind, len(nonce)) == (Kind.CHALLENGE, NONCE_BYTES)
        stranger.sendall(pack_frame(Kind.PROOF, prove(b"guess", b"dialer", hello, bytes(NONCE_BYTES), nonce)))
        kind, meta = hear(stranger)
        assert (kind, decode(HandshakeRefused, meta).cause) == (Kind.REFUSED, "token")
        assert stranger.recv(1) == b""


def test_who_dials_without_a_token_is_told_that_it_has_none(acceptor: Acceptor) -> None:
    with pytest.raises(TokenError, match="differ, as this process has none; give"):
        acceptor.dial(token=b"")
    with pytest.raises(TokenError, match="differ; give"):
        acceptor.dial(token=b"other")


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_a_dialer_of_another_version_is_told_both(acceptor: Acceptor, version: int) -> None:
    hello = encode(DialerHello(purpose="sink", version=version, nonce="00" * NONCE_BYTES))
    with closing(socket.create_connection(("127.0.0.1", acceptor.listener.port), timeout=scaled(5))) as stranger:
        stranger.sendall(pack_frame(Kind.HELLO, hello))
        kind, meta = hear(stranger)
    assert kind == Kind.REFUSED
    expected = f"the dialer speaks version {version} of the protocol, and .* dialed version {PROTOCOL_VERSION}: install"
    assert re.match(expected, decode(HandshakeRefused, meta).reason)


def test_a_wrong_key_and_a_wrong_token_are_refused(acceptor: Acceptor) -> None:
    with pytest.raises(HandshakeError, match="tokens differ"):
        acceptor.dial(token=b"other", voucher=Voucher(PEER, b"x" * 32))
    assert not acceptor.taken


def test_a_dialer_that_names_itself_and_proves_nothing_is_dropped_in_time(
    acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiworld.wire.endpoints.listener.UNPROVEN_S", 0.1)
    hello = encode(DialerHello(purpose="sink", by=PEER, version=PROTOCOL_VERSION, nonce="00" * NONCE_BYTES))
    with closing(socket.create_connection(("127.0.0.1", acceptor.listener.port), timeout=scaled(5))) as stranger:
        stranger.sendall(pack_frame(Kind.HELLO, hello))
        assert stranger.recv(1) == b""
    assert wait_until(lambda: acceptor.num_unproven == 0, timeout_s=5)


def accept_at_once(meta: bytes) -> Callable[[bytes], bytes]:
    return lambda hello: pack_frame(Kind.ACCEPTED, meta)


def reflect(hello: bytes) -> bytes:
    """Give the dialer its own proof back."""
    nonce = bytes.fromhex(decode(DialerHello, hello).nonce)
    return pack_frame(Kind.ACCEPTED, prove(KEY, b"dialer", hello, nonce, b""))


def challenge_and_accept(hello: bytes) -> bytes:
    """As a stranger that wants to be trusted, whatever the dialer proves."""
    return pack_frame(Kind.CHALLENGE, bytes(NONCE_BYTES)) + pack_frame(Kind.ACCEPTED, bytes(32))


def challenge_twice(hello: bytes) -> bytes:
    return 2 * pack_frame(Kind.CHALLENGE, bytes(NONCE_BYTES))


ANSWERS = [accept_at_once(b""), accept_at_once(b"\x00" * 48), reflect, challenge_and_accept, challenge_twice]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("voucher", [None, Voucher(PEER, KEY)])
def test_nobody_is_believed_who_accepts_without_a_proof(
    loop: ProgressThread, voucher: Voucher | None, answer: Callable[[bytes], bytes]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(answer_one, server, answer)
        port = server.getsockname()[1]
        operation: Operation[Connection] = dial(
            loop, "127.0.0.1", port, DialerHello(purpose="sink"), TOKEN, Sink(), timeout_s=scaled(5), voucher=voucher
        )
        with pytest.raises(
            (HandshakeError, DialError), match=r"asked for the job token|know the job token|no acceptor of ours"
        ):
            wait_blocking(operation)
        serving.result()


def answer_one(server: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    sock, _ = server.accept()
    with closing(sock):
        sock.settimeout(scaled(5))
        kind, hello = hear(sock)
        assert kind == Kind.HELLO
        sock.sendall(answer(hello))
        while sock.recv(1024):
            pass


def test_a_port_where_nobody_listens_refuses_at_once(loop: ProgressThread) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        operation = dial(loop, "127.0.0.1", port, DialerHello(), TOKEN, Sink(), timeout_s=scaled(5))
        with pytest.raises(DialError, match="refused"):
            wait_blocking(operation)


@pytest.mark.parametrize(
    ("answer", "codes"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", {errno.EPROTO}),
        (b"220 hello\r\n", {errno.EPROTO}),
        (b"", {0, errno.ECONNRESET}),
    ],
)
def test_another_protocol_is_told_from_a_connection_that_is_closed(
    loop: ProgressThread, answer: bytes, codes: set[int]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        operation = dial(loop, "127.0.0.1", server.getsockname()[1], DialerHello(), TOKEN, Sink(), timeout_s=scaled(5))
        guest, _ = server.accept()
        with closing(guest):
            guest.sendall(answer)
        with pytest.raises(DialError) as raised:
            wait_blocking(operation)
        assert raised.value.errno in codes


def test_a_greeting_of_another_protocol_is_no_silence(loop: ProgressThread) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        operation = dial(loop, "127.0.0.1", server.getsockname()[1], DialerHello(), TOKEN, Sink(), timeout_s=0.1)
        guest, _ = server.accept()
        with closing(guest):
            guest.sendall(b"220 hello\r\n")
            with pytest.raises(DialError) as raised:
                wait_blocking(operation)
        assert (raised.value.errno, raised.value.is_silent) == (errno.EPROTO, False)


def test_a_lack_of_descriptors_is_told_from_a_connection_that_is_closed(
    loop: ProgressThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("multiworld.wire.endpoints.dialer.socket.socket", no_socket)
    with pytest.raises(DialError, match="Too many open files") as raised:
        wait_blocking(dial(loop, "127.0.0.1", 1, DialerHello(), TOKEN, Sink(), timeout_s=scaled(5)))
    assert raised.value.errno == errno.EMFILE


def unwatchable(monkeypatch: pytest.MonkeyPatch, loop: ProgressThread) -> None:
    """As where as many descriptors are watched as a user may."""

    def register(fd: int, events: int, handler: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(loop, "register", register)


def test_a_connection_that_cannot_be_watched_fails_its_dialing(
    loop: ProgressThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        unwatchable(monkeypatch, loop)
        sink = Sink()
        operation = dial(loop, "127.0.0.1", server.getsockname()[1], DialerHello(), TOKEN, sink, timeout_s=scaled(5))
        with pytest.raises(DialError, match="No space") as raised:
            wait_blocking(operation)
        assert raised.value.errno == errno.ENOSPC
        peer, _ = server.accept()
        with closing(peer):
            peer.settimeout(scaled(5))
            assert peer.recv(1) == b"", "the socket is open"
        assert sink.lost_reasons == []


def test_a_channels_own_socket_that_cannot_be_watched_is_closed(
    loop: ProgressThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        unwatchable(monkeypatch, loop)
        operation = attach_socket(SimpleNamespace(loop=loop), ours, Sink())  # type: ignore[arg-type]
        assert wait_until(lambda: operation.done, timeout_s=5)
        with pytest.raises(OSError, match="No space"):
            operation.result()
        assert theirs.recv(1) == b""
