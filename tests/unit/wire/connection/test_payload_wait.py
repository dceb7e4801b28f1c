"""Looking again for the rest of a large payload."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from multiworld.testing import scaled
from multiworld.wire.connection.payload_wait import LARGE_BYTES, PayloadWait
from multiworld.wire.progress.spinning import MAX_MISSES, REST

MUCH = 4 * LARGE_BYTES


class Place:
    """A socket, and the descriptor of all others."""

    def __init__(self) -> None:
        self.sock, self.peer = socket.socketpair()
        self.others = os.eventfd(0, os.EFD_NONBLOCK)
        self.wait = PayloadWait(self.sock.fileno(), self.others)

    def close(self) -> None:
        self.sock.close()
        self.peer.close()
        os.close(self.others)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def test_what_comes_in_a_moment_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.wire.connection.payload_wait.SPIN_S", scaled(5))
    timer = threading.Timer(0.01, place.peer.send, (b"x",))
    timer.start()
    assert place.wait.more_comes(MUCH)
    timer.join()


def test_it_is_not_waited_for_while_others_have_something(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.wire.connection.payload_wait.SPIN_S", scaled(5))
    os.eventfd_write(place.others, 1)
    began = time.monotonic()
    assert not place.wait.more_comes(MUCH)
    assert time.monotonic() - began < scaled(5)
    place.peer.send(b"x")
    assert place.wait.more_comes(MUCH), "what is here counts, whoever else has something"


def test_a_small_rest_is_not_waited_for(place: Place) -> None:
    place.peer.send(b"x")
    assert not place.wait.more_comes(LARGE_BYTES - 1)


def test_a_row_of_waits_in_vain_ends_them_for_a_while(place: Place) -> None:
    for _ in range(MAX_MISSES):
        assert not place.wait.more_comes(MUCH)
    place.peer.send(b"x")
    for _ in range(REST):
        assert not place.wait.more_comes(MUCH), "it is not even looked"
    assert place.wait.more_comes(MUCH)


def test_a_wait_that_pays_forgives_those_before(place: Place) -> None:
    for _ in range(MAX_MISSES - 1):
        assert not place.wait.more_comes(MUCH)
    place.peer.send(b"x")
    assert place.wait.more_comes(MUCH)
    place.sock.recv(1)
    assert not place.wait.more_comes(MUCH)
    place.peer.send(b"x")
    assert place.wait.more_comes(MUCH)
