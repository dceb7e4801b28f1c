"""A helper process of this one is there again after it was killed, stopped, or could not be started."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multiworld.testing import scaled
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.processes.kept_process import KeptProcess

WAIT_S = 20.0


class Sleeper:
    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "600"])
        self.pid = self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Kept:
    """One on a thread of its own; ``failures`` are raised, one after the other, instead of starting a process."""

    def __init__(self, loop: ProgressThread, *failures: OSError) -> None:
        self._loop, self._failures = loop, list(failures)
        self.started: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.process = KeptProcess(loop, "the helper", self._start, self._told, look_s=0.05)

    def _start(self) -> Sleeper:
        if self._failures:
            raise self._failures.pop(0)
        return Sleeper()

    def _told(self, sleeper: Sleeper) -> None:
        self.started.put(sleeper.pid)

    def begin(self) -> int | None:
        begun: list[Sleeper | None] = []
        self.on_thread(lambda: begun.append(self.process.begin()))
        return None if begun[0] is None else begun[0].pid

    def next_pid(self) -> int:
        return self.started.get(timeout=scaled(WAIT_S))

    def on_thread(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon(call)
        self._loop.call_soon(done.set)
        assert done.wait(scaled(WAIT_S))


@pytest.fixture
def loop(no_leaks: None) -> Iterator[ProgressThread]:
    thread = ProgressThread("test-kept")
    yield thread
    thread.stop()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_one_that_was_killed_or_stopped_is_replaced_and_that_is_said(
    loop: ProgressThread, signum: int, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(loop)
    first = kept.begin()
    assert first is not None
    os.kill(first, signum)
    second = kept.next_pid()
    assert second != first
    assert not Path(f"/proc/{first}").exists()
    assert f"the helper (process {first}) {'was stopped' if signum == signal.SIGSTOP else 'ended'}" in caplog.text
    kept.on_thread(kept.process.close)
    assert not Path(f"/proc/{second}").exists()


def test_one_that_is_killed_again_and_again_is_there_again_each_time(loop: ProgressThread) -> None:
    kept = Kept(loop)
    pid = kept.begin()
    for _ in range(3):
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        pid = kept.next_pid()
    kept.on_thread(kept.process.close)


def test_one_that_could_not_be_started_is_started_later_and_that_is_said_once(
    loop: ProgressThread, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(loop, *[OSError(11, "Resource temporarily unavailable")] * 2)
    assert kept.begin() is None
    assert Path(f"/proc/{kept.next_pid()}").exists()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "the helper cannot be started, which is tried again: [Errno 11] Resource temporarily unavailable"
    ]
    kept.on_thread(kept.process.close)


def test_none_is_started_after_the_end(loop: ProgressThread) -> None:
    kept = Kept(loop, OSError("not now"))

    def begin_and_close() -> None:
        assert kept.process.begin() is None
        kept.process.close()

    kept.on_thread(begin_and_close)
    kept.on_thread(lambda: None)  # after the turn in which it would have been tried again
    assert kept.process.current is None
    assert kept.started.empty()
