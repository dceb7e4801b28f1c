"""Looking whether descriptors are readable: in C, which gives up the interpreter lock, and in Python."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from multiworld import native
from multiworld.testing import scaled
from multiworld.wire.progress.polling import Poller


@pytest.fixture(params=["native", "python"])
def pair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[socket.socket, socket.socket]]:
    if request.param == "python":
        monkeypatch.setattr(native, "core", None)
    elif native.core is None:
        pytest.skip(f"there is no native core: {native.why_not}")
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_what_is_readable_is_told_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent:
        there.sendall(b"x")
        assert Poller(silent.fileno(), here.fileno()).look(scaled(30)) == [(here.fileno(), select.POLLIN)]


def test_a_peer_that_has_gone_is_told_too(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    there.close()
    (told,) = Poller(here.fileno()).look(scaled(30))
    assert told[0] == here.fileno()
    assert told[1] & select.POLLRDHUP


def test_nothing_is_told_after_the_time(pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    began = time.perf_counter()
    assert Poller(here.fileno()).look(0.02) == []
    assert time.perf_counter() - began >= 0.02
    assert Poller(here.fileno()).look(0.0) == []
    assert Poller(here.fileno()).look(-1.0) == [], "the time was over before"


def test_what_comes_during_the_look_ends_it(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    timer = threading.Timer(0.02, there.sendall, (b"x",))
    timer.start()
    assert Poller(here.fileno()).look(scaled(30)) == [(here.fileno(), select.POLLIN)]
    timer.join()


@pytest.mark.skipif(native.core is None, reason="only the native core gives up the interpreter lock")
def test_other_threads_run_during_a_look_in_c() -> None:
    """A thread that waits for the lock gets it although nobody is made to give it up."""
    counted = [0]
    over = threading.Event()
    interval_s = sys.getswitchinterval()
    reading, writing = os.pipe()

    def count() -> None:
        while not over.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    try:
        sys.setswitchinterval(10.0)
        thread.start()
        before = counted[0]
        assert Poller(reading).look(0.1) == []
        assert counted[0] > before + 10
    finally:
        sys.setswitchinterval(interval_s)
        over.set()
        thread.join()
        os.close(reading)
        os.close(writing)
