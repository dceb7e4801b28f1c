"""What an agent tells of a worker that ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import repeat
from typing import cast

import pytest

from multiworld.elastic.agent import local_worker
from multiworld.elastic.agent.local_worker import LocalWorker
from multiworld.elastic.job.failure import FailureCause, WorkerFailure
from multiworld.process.child import WorkerProcess
from multiworld.testing.deadlines import scaled
from multiworld.wire.progress.thread import ProgressThread
from tests.unit.elastic.agent.test_environment import PLACE


@pytest.mark.parametrize(
    ("is_quiet", "returncode", "is_told"),
    [
        (True, -signal.SIGTERM, False),
        (True, -signal.SIGKILL, False),
        (True, 1, True),  # it failed before it could obey
        (True, -signal.SIGSEGV, True),
        (False, -signal.SIGTERM, True),
    ],
)
def test_how_a_worker_failed_is_told_unless_it_obeyed_and_nobody_asks(
    is_quiet: bool, returncode: int, is_told: bool
) -> None:
    loop = ProgressThread("test-held")
    try:
        held = LocalWorker(loop, "worker", PLACE, on_exit=lambda _: None, agent_was_away=lambda: 0.0)
        failure = WorkerFailure(
            rank=0,
            local_rank=0,
            node_rank=0,
            role="default",
            hostname="host",
            pid=1,
            generation=1,
            returncode=returncode,
            at_us=0,
            cause=FailureCause.SIGNAL,
        )
        held.did_not_begin(failure, returncode)
        held.is_quiet = is_quiet
        assert held.told_failure is (failure if is_told else None)
    finally:
        loop.stop()


class HungProcess:
    """A process that writes its stacks itself, and does so at each look that ``looks`` says."""

    def __init__(self, looks: Iterator[bool]) -> None:
        self.pid, self.returncode, self.killed = os.getpid(), None, threading.Event()
        self.looks: list[bool] = []
        self._coming = looks

    def dump_stacks(self) -> bool:
        return True

    @property
    def is_dumping(self) -> bool:
        self.looks.append(next(self._coming))
        return self.looks[-1]

    def kill(self) -> None:
        self.killed.set()


def kill_hung(looks: Iterator[bool], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether it was writing its stacks, look by look, until it was killed."""
    monkeypatch.setattr(local_worker, "dump_stacks", lambda pid: None)
    monkeypatch.setattr(local_worker, "LAST_LOOK_S", local_worker.FIRST_LOOK_S)
    loop = ProgressThread("test-held")
    try:
        held = LocalWorker(loop, "worker", PLACE, on_exit=lambda _: None, agent_was_away=lambda: 0.0)
        process = HungProcess(looks)
        held.process, held.progressed_at = cast(WorkerProcess, process), 100.0
        held.look(161.0, lease_s=2.0, progress_s=60.0)
        assert process.killed.wait(scaled(10.0))
        return process.looks
    finally:
        loop.stop()


def test_a_worker_that_hangs_is_killed_once_it_has_written_its_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [False, True, True, False, False]
    assert kill_hung(iter(told), monkeypatch) == told


def test_a_worker_that_never_writes_its_stacks_is_killed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker, "STACKS_S", 0.05)
    looks = kill_hung(repeat(True), monkeypatch)
    assert len(looks) > 1
    assert all(looks)
