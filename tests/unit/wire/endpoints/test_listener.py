"""What strangers at a listening port cost: places that go to newcomers, and a line of log now and then."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from multiworld.testing import scaled
from multiworld.wire.connection.frames import Kind, pack_frame
from multiworld.wire.endpoints import dialer
from multiworld.wire.endpoints.admission import MAX_UNPROVEN
from multiworld.wire.endpoints.dialer import dial
from multiworld.wire.endpoints.handshake import NONCE_BYTES, PROTOCOL_VERSION, DialerHello
from multiworld.wire.endpoints.listener import Listener
from multiworld.wire.messages import encode
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from multiworld.wire.rate_limited_log import RateLimitedLog
from tests.unit.wire.connected import Sink


@pytest.fixture
def loop(no_leaks: None) -> Iterator[ProgressThread]:
    loop = ProgressThread("test-listener")
    yield loop
    loop.stop()


@pytest.fixture
def listener(loop: ProgressThread) -> Iterator[Listener]:
    listener = Listener(loop, "127.0.0.1", 0, b"secret", {"sink": lambda pending: pending.accept(Sink())})
    yield listener
    loop.call_soon(listener.close)


def come(listener: Listener, words: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", listener.port), timeout=scaled(5))
    sock.sendall(words)
    return sock


def is_thrown_out(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize(
    "words",
    [
        b"x" * 64,
        pack_frame(Kind.HELLO, b"no fields"),
        pack_frame(Kind.HELLO, b"[" * 4000),
        pack_frame(Kind.HELLO, encode(DialerHello(version=-1))),
    ],
)
def test_what_strangers_say_is_one_line_of_log(
    listener: Listener, caplog: pytest.LogCaptureFixture, words: bytes
) -> None:
    caplog.set_level(logging.INFO)
    with ExitStack() as stack:
        crowd = [stack.enter_context(come(listener, words)) for _ in range(30)]
        assert all(is_thrown_out(stranger) for stranger in crowd)
    assert len(caplog.records) == 1


def test_silent_strangers_keep_nobody_out(loop: ProgressThread, listener: Listener) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(come(listener)) for _ in range(MAX_UNPROVEN + 20)]
        hello, limit_s = DialerHello(purpose="sink"), scaled(5)
        sink = Sink()
        connection = wait_blocking(dial(loop, "127.0.0.1", listener.port, hello, b"secret", sink, timeout_s=limit_s))
        connection.abort()
        assert all(is_thrown_out(stranger) for stranger in crowd[:20])


def test_one_that_awaits_the_answer_to_its_hello_outlasts_those_that_are_silent(
    loop: ProgressThread, listener: Listener
) -> None:
    hello = pack_frame(Kind.HELLO, encode(DialerHello(version=PROTOCOL_VERSION, nonce="00" * NONCE_BYTES)))
    with ExitStack() as stack:
        first = stack.enter_context(come(listener, hello))
        assert len(first.recv(4096)) > NONCE_BYTES  # it is challenged
        crowd = [stack.enter_context(come(listener)) for _ in range(MAX_UNPROVEN)]
        assert is_thrown_out(crowd[0])
        first.setblocking(False)
        with pytest.raises(BlockingIOError):
            first.recv(1)


def test_another_service_at_an_address_that_is_dialed_again_and_again_is_one_line_of_log(
    loop: ProgressThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "_say_garbage", RateLimitedLog(dialer.logger.warning))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(scaled(5))
        port = server.getsockname()[1]
        for _ in range(3):
            dialing = dial(loop, "127.0.0.1", port, DialerHello(), b"secret", Sink(), timeout_s=scaled(5))
            with server.accept()[0] as sock:
                sock.sendall(b"220 ready\r\n" * 10)
                with pytest.raises(dialer.DialError):
                    wait_blocking(dialing)
    assert len(caplog.records) == 1
