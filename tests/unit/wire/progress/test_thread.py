"""The progress thread: calls in order, timers in time, ready descriptors, and nothing left when it stops."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from multiworld.testing import scaled, wait_until
from multiworld.wire.progress.thread import ProgressThread, weakly

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def loop(no_leaks: None) -> Iterator[ProgressThread]:
    loop = ProgressThread("test-progress")
    yield loop
    loop.stop()


class Pipe:
    """A handler that reads what comes through a pipe."""

    def __init__(self, loop: ProgressThread, *, error: Exception | None = None) -> None:
        self.loop, self.error = loop, error
        self.reading, self.writing = os.pipe()
        self.read: list[bytes] = []
        self.failures: list[BaseException] = []
        self.closed_by_loop = False
        loop.register(self.reading, select.EPOLLIN, self)

    def on_ready(self, events: int) -> None:
        self.read.append(os.read(self.reading, 100))
        if self.error is not None:
            raise self.error

    def on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self.loop.unregister(self.reading)

    def close_descriptor(self) -> None:
        self.closed_by_loop = True
        os.close(self.reading)

    def close(self) -> None:
        os.close(self.writing)
        if not self.closed_by_loop:
            self.loop.unregister(self.reading)
            os.close(self.reading)


def sync(loop: ProgressThread) -> None:
    """Wait until the loop has run what was queued before."""
    reached = threading.Event()
    loop.call_soon(reached.set)
    assert reached.wait(scaled(5))


def test_calls_run_in_order_on_the_progress_thread(loop: ProgressThread) -> None:
    seen: list[tuple[int, bool]] = []
    for index in range(1000):
        loop.call_soon(lambda index=index: seen.append((index, loop.on_thread)))  # type: ignore[misc]
    sync(loop)
    assert seen == [(index, True) for index in range(1000)]
    assert not loop.on_thread


def test_no_call_is_lost_however_the_thread_falls_asleep(loop: ProgressThread) -> None:
    for _ in range(2000):
        ran = threading.Event()
        loop.call_soon(ran.set)
        assert ran.wait(scaled(5)), "a wake-up was lost"


def test_calls_from_many_threads_all_run(loop: ProgressThread) -> None:
    seen: list[int] = []

    def call_often() -> None:
        for _ in range(500):
            loop.call_soon(lambda: seen.append(1))

    threads = [threading.Thread(target=call_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sync(loop)
    assert len(seen) == 4000


def fail() -> None:
    raise ZeroDivisionError


def test_a_call_that_raises_harms_no_other(loop: ProgressThread, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    loop.call_soon(fail)
    loop.call_soon(lambda: seen.append("after"))
    sync(loop)
    assert seen == ["after"]
    assert "ZeroDivisionError" in caplog.text


def test_timers_fire_in_the_order_of_their_times(loop: ProgressThread) -> None:
    seen: list[int] = []
    done = threading.Event()
    loop.call_later(0.06, done.set)
    for delay_ms in (50, 10, 30, 20, 40):
        loop.call_later(delay_ms / 1000, lambda delay_ms=delay_ms: seen.append(delay_ms))  # type: ignore[misc]
    assert done.wait(scaled(5))
    assert seen == [10, 20, 30, 40, 50]


def test_a_timer_wakes_a_thread_that_sleeps_without_one(loop: ProgressThread) -> None:
    sync(loop)
    fired = threading.Event()
    started = time.monotonic()
    loop.call_later(0.02, fired.set)
    assert fired.wait(scaled(5))
    assert time.monotonic() - started >= 0.02


def test_a_sooner_timer_shortens_the_sleep_for_a_later_one(loop: ProgressThread) -> None:
    loop.call_later(30, lambda: None)
    sync(loop)
    fired = threading.Event()
    loop.call_later(0.01, fired.set)
    assert fired.wait(scaled(5))


def test_a_cancelled_timer_never_fires(loop: ProgressThread) -> None:
    seen: list[str] = []
    timer = loop.call_later(0.01, lambda: seen.append("fired"))
    timer.cancel()
    timer.cancel()
    done = threading.Event()
    loop.call_later(0.03, done.set)
    assert done.wait(scaled(5))
    assert seen == []


@pytest.mark.parametrize("delay_s", [math.inf, 1e12, 3e6])
def test_a_deadline_beyond_what_the_system_can_wait_for_is_no_error(loop: ProgressThread, delay_s: float) -> None:
    loop.call_later(delay_s, lambda: None)
    for _ in range(3):
        sync(loop)
    assert loop.running


def test_cancelled_timers_do_not_pile_up(loop: ProgressThread) -> None:
    kept = [loop.call_later(3600, lambda: None) for _ in range(10)]
    for _ in range(20_000):
        loop.call_later(3600, lambda: None).cancel()
    assert len(loop._timers) < 1000
    assert sum(timer in loop._timers for timer in kept) == 10


def test_a_weak_call_does_nothing_once_its_object_has_gone() -> None:
    class Listener:
        def hear(self, word: str) -> None:
            heard.append(word)

    heard: list[str] = []
    listener = Listener()
    call = weakly(listener.hear, "now")
    call()
    del listener
    call()
    assert heard == ["now"]


def test_a_ready_descriptor_is_handled_and_one_that_fails_is_given_up_alone(loop: ProgressThread) -> None:
    good, bad = Pipe(loop), Pipe(loop, error=ValueError("defect"))
    os.write(bad.writing, b"x")
    assert wait_until(lambda: bool(bad.failures), timeout_s=5)
    os.write(good.writing, b"y")
    assert wait_until(lambda: good.read == [b"y"], timeout_s=5)
    os.write(bad.writing, b"z")
    sync(loop)
    assert bad.read == [b"x"]
    loop.unregister(bad.reading)  # unknown by now: ignored
    good.close()
    bad.close()


def test_a_handler_whose_failure_fails_too_does_not_end_the_thread(loop: ProgressThread) -> None:
    class Hopeless(Pipe):
        def on_failure(self, error: BaseException) -> None:
            super().on_failure(error)
            raise RuntimeError("again")

    hopeless = Hopeless(loop, error=ValueError("defect"))
    os.write(hopeless.writing, b"x")
    assert wait_until(lambda: bool(hopeless.failures), timeout_s=5)
    sync(loop)
    assert loop.running
    hopeless.close()


def test_stop_runs_what_was_queued_and_closes_what_is_registered() -> None:
    loop = ProgressThread("test-progress")
    pipe = Pipe(loop)
    seen: list[str] = []
    loop.call_soon(lambda: seen.append("last"))
    loop.stop()
    loop.stop()
    assert seen == ["last"]
    assert pipe.closed_by_loop
    assert not loop.running
    loop.call_soon(lambda: seen.append("never"))
    loop.call_later(0, lambda: seen.append("never"))
    pipe.close()
    assert seen == ["last"]


def test_stop_from_the_thread_itself_does_not_wait_for_itself() -> None:
    loop = ProgressThread("test-progress")
    loop.call_soon(loop.stop)
    assert wait_until(lambda: not loop.running, timeout_s=5)


def test_a_loop_whose_thread_cannot_be_started_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        ProgressThread("test-progress")


def test_a_descriptor_that_cannot_be_watched_stays_its_owners(tmp_path: Path) -> None:
    loop = ProgressThread("test-progress")
    pipe = Pipe(loop)
    with (tmp_path / "file").open("w") as file:
        with pytest.raises(PermissionError):  # as a file is always ready
            loop.register(file.fileno(), select.EPOLLIN, pipe)
        loop.unregister(pipe.reading)
        loop.stop()
        assert not pipe.closed_by_loop
    pipe.close()


def test_many_loops_come_and_go() -> None:
    for _ in range(50):
        loop = ProgressThread("test-progress")
        loop.call_later(100, lambda: None)
        loop.call_soon(lambda: None)
        loop.stop()
