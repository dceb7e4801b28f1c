"""The kernel wakes a reader once per half a megabyte of a payload, and never waits for more than is to come."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from multiworld.wire.connection.low_water import LEAST_BYTES, MARK_BYTES, LowWater


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def mark_of(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def is_readable(sock: socket.socket, timeout_s: float) -> bool:
    return bool(select.select([sock], [], [], timeout_s)[0])


@pytest.mark.parametrize(
    ("rest_bytes", "mark"),
    [(10 * MARK_BYTES, MARK_BYTES), (LEAST_BYTES, LEAST_BYTES), (LEAST_BYTES - 1, 1), (0, 1)],
)
def test_the_mark_is_at_most_what_is_to_come(
    pair: tuple[socket.socket, socket.socket], rest_bytes: int, mark: int
) -> None:
    low_water = LowWater(pair[0])
    low_water.expect(10 * MARK_BYTES)
    low_water.expect(rest_bytes)
    assert mark_of(pair[0]) == mark


def test_less_than_the_mark_wakes_nobody_and_the_end_does(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    low_water = LowWater(ours)
    low_water.expect(MARK_BYTES)
    theirs.sendall(bytes(1000))
    assert not is_readable(ours, 0.05)
    theirs.sendall(bytes(MARK_BYTES - 1000))
    assert is_readable(ours, 10)
    assert len(ours.recv(MARK_BYTES, socket.MSG_WAITALL)) == MARK_BYTES
    theirs.sendall(bytes(1000))
    assert not is_readable(ours, 0.05)
    theirs.close()
    assert is_readable(ours, 10), "a peer that died is news"


def test_where_it_is_refused_it_is_not_tried_again() -> None:
    class Refusing:
        num_calls = 0

        def setsockopt(self, *_: object) -> None:
            self.num_calls += 1
            raise PermissionError

    sock = Refusing()
    low_water = LowWater(sock)  # type: ignore[arg-type]
    low_water.expect(MARK_BYTES)
    low_water.expect(0)
    assert sock.num_calls == 1
