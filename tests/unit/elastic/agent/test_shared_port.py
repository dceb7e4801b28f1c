"""The port that agents share with c10d stores, where strangers come as well."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from multiworld.elastic.agent import shared_port
from multiworld.elastic.agent.shared_port import C10D, PING_BYTES, SharedPort
from multiworld.testing.deadlines import scaled, wait_until
from multiworld.wire.endpoints.admission import MAX_UNPROVEN
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread

WORKER = C10D + bytes(PING_BYTES)


class Entrance:
    """A shared port, the agents that it has admitted, and a socket in the place of the store."""

    def __init__(self, loop: ProgressThread, store: socket.socket) -> None:
        self.loop, self.store = loop, store
        self.admitted: list[socket.socket] = []
        self.door: SharedPort = self.on(
            lambda: SharedPort(loop, "127.0.0.1", 0, lambda sock, _: self.admitted.append(sock))
        )
        self.door.store = store.getsockname()

    def on(self, make: Any) -> Any:
        """Run ``make`` on the progress thread, and return what it returns."""
        done: Operation[Any] = Operation()

        def run() -> None:
            done.succeed(make())

        self.loop.call_soon(run)
        assert wait_until(lambda: done.done, 5)
        return done.result()

    def come(self, words: bytes = b"") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.door.port), timeout=scaled(5))
        sock.sendall(words)
        return sock

    def close(self) -> None:
        self.on(self.door.close)
        for sock in self.admitted:
            sock.close()


@pytest.fixture
def entrance(no_leaks: None) -> Iterator[Entrance]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as store:
        store.settimeout(scaled(5))
        loop = ProgressThread("test-door")
        entrance = Entrance(loop, store)
        yield entrance
        entrance.close()
        loop.stop()


def is_shown_out(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_client_of_pytorchs_store_begins_as_the_door_expects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(scaled(5))

        def connect() -> None:
            with contextlib.suppress(RuntimeError):  # it gets no answer
                TCPStore(
                    "127.0.0.1", server.getsockname()[1], None, is_master=False, timeout=timedelta(milliseconds=500)
                )

        client = threading.Thread(target=connect)
        client.start()
        sock, _ = server.accept()
        with sock:
            sock.settimeout(scaled(5))
            words = b""
            while len(words) < len(WORKER):
                words += sock.recv(64)
        assert words.startswith(C10D)
        assert len(words) == len(WORKER)
        server.close()
        client.join()


@pytest.mark.parametrize("words", [b"x" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\0garbage", bytes(64), b"Mx"])
def test_who_is_no_worker_is_not_led_to_the_store(entrance: Entrance, words: bytes) -> None:
    with entrance.come(words) as stranger:
        assert is_shown_out(stranger)
    with entrance.come(C10D[:2]) as worker:
        worker.sendall(C10D[2:] + b"more")
        inside, _ = entrance.store.accept()
        with inside:
            assert inside.recv(len(C10D)) == C10D


def test_many_strangers_are_one_line_of_log(entrance: Entrance, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(50):
        with entrance.come(b"garbage") as stranger:
            assert is_shown_out(stranger)
    (record,) = caplog.records
    assert "it is no worker's" in record.getMessage()


def test_silent_strangers_keep_neither_agents_nor_workers_out(entrance: Entrance) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(entrance.come()) for _ in range(MAX_UNPROVEN + 20)]
        stack.enter_context(entrance.come(b"MW..."))
        assert wait_until(lambda: bool(entrance.admitted), 5)
        stack.enter_context(entrance.come(WORKER))
        inside, _ = entrance.store.accept()
        with inside:
            assert inside.recv(64) == WORKER
        assert all(is_shown_out(stranger) for stranger in crowd[:20])


def test_who_asks_the_store_nothing_goes_for_a_newcomer(entrance: Entrance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_port, "MAX_RELAYS", 2)
    with ExitStack() as stack:

        def lead(words: bytes) -> socket.socket:
            sock = stack.enter_context(entrance.come(words))
            inside = stack.enter_context(entrance.store.accept()[0])
            inside.settimeout(scaled(5))
            assert inside.recv(64) == words
            return sock

        asking = lead(WORKER + b"a request")
        idle = lead(WORKER)
        lead(WORKER + b"another request")
        assert is_shown_out(idle)
        with entrance.come(WORKER) as too_many:  # all those that are left use the store
            assert is_shown_out(too_many)
        asking.sendall(b"goes on")
