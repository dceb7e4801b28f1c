"""The relay: what passes, what it does to connections, and that both ends see what a network would show them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from multiworld.testing import Relay, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]


@contextlib.contextmanager
def echo_server() -> Iterator[tuple[str, int]]:
    """Serve connections that send everything back, one thread each."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                threads.append(threading.Thread(target=echo, args=(listener.accept()[0],)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()
        for thread in threads:
            thread.join()


@pytest.fixture
def relay() -> Iterator[Relay]:
    with echo_server() as (host, port), Relay(host, port) as relay:
        yield relay


@pytest.fixture
def client(relay: Relay) -> Iterator[socket.socket]:
    with socket.create_connection((relay.host, relay.port), timeout=10) as client:
        client.sendall(b"first")
        assert receive(client, 5) == b"first"
        relay.wait_connections(1)
        yield client


def receive(client: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (chunk := client.recv(num_bytes - len(data))):
        data += chunk
    return data


def connect_and_receive(client: socket.socket, relay: Relay) -> None:
    client.connect((relay.host, relay.port))
    client.recv(1)


def test_bytes_pass_unchanged_in_both_directions(relay: Relay, client: socket.socket) -> None:
    data = bytes(range(256)) * 4096
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()
    assert wait_until(lambda: relay.num_bytes == {"to_server": len(data) + 5, "to_client": len(data) + 5}, timeout_s=5)


def test_the_end_of_one_side_reaches_the_other(relay: Relay, client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert wait_until(lambda: relay.num_connections == 0, timeout_s=5)


def test_delay_holds_bytes_on_the_way_given_only(relay: Relay, client: socket.socket) -> None:
    relay.delay(0.1, "to_client")
    start = time.monotonic()
    client.sendall(b"x")
    assert receive(client, 1) == b"x"
    assert 0.1 <= time.monotonic() - start < 0.2 + 1
    relay.delay(0)
    start = time.monotonic()
    client.sendall(b"x")
    receive(client, 1)
    assert time.monotonic() - start < 0.1


def test_throttle_limits_the_rate(relay: Relay, client: socket.socket) -> None:
    relay.throttle(100_000, "to_server")
    start = time.monotonic()
    client.sendall(bytes(20_000))
    receive(client, 20_000)
    assert time.monotonic() - start >= 0.15
    relay.throttle(None)


def test_freeze_holds_everything_and_thaw_lets_it_go_on(relay: Relay, client: socket.socket) -> None:
    relay.freeze()
    client.sendall(b"held")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(4)
    client.settimeout(10)
    relay.thaw()
    assert receive(client, 4) == b"held"


def test_cut_closes_and_refuses_until_restored(relay: Relay, client: socket.socket) -> None:
    relay.cut()
    assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((relay.host, relay.port), timeout=10)
    relay.restore()
    with socket.create_connection((relay.host, relay.port), timeout=10) as again:
        again.sendall(b"back")
        assert receive(again, 4) == b"back"


def test_reset_is_seen_as_a_reset(relay: Relay, client: socket.socket) -> None:
    relay.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with socket.create_connection((relay.host, relay.port), timeout=10) as again:
        again.sendall(b"next")
        assert receive(again, 4) == b"next"


def test_injected_bytes_arrive_among_the_others(relay: Relay, client: socket.socket) -> None:
    relay.inject(b"garbage", "to_client")
    assert receive(client, 7) == b"garbage"
    relay.inject(b"echoed", "to_server")
    assert receive(client, 6) == b"echoed"


def test_a_target_that_nobody_serves_is_seen_as_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with Relay("127.0.0.1", port) as relay, socket.socket() as client:
        client.settimeout(10)
        with pytest.raises(ConnectionResetError):  # by either call: the connection may be reset at once
            connect_and_receive(client, relay)


def test_an_unknown_way_is_refused(relay: Relay) -> None:
    with pytest.raises(ValueError, match="to_server"):
        relay.delay(1, "sideways")  # type: ignore[arg-type]


def test_closing_frees_the_port_with_connections_open() -> None:
    with echo_server() as (host, port):
        with Relay(host, port) as relay, socket.create_connection((relay.host, relay.port)) as client:
            relay.freeze()
            client.sendall(b"held for ever")
            relay.wait_connections(1)
        socket.create_server((relay.host, relay.port)).close()
