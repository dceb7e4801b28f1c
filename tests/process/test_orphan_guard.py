"""What processes leave behind is killed: when they end, and when the process that had started them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from multiworld.testing import wait_until
from multiworld.world.processes.procfs import process_sessions

pytestmark = pytest.mark.process

WAIT_S = 10.0


@dataclass
class Child:
    leader: int
    same_group: int
    own_group: int
    own_session: int

    @property
    def left(self) -> set[int]:
        """Which of these run. The one with its own session is no concern of ours."""
        return {self.leader, self.same_group, self.own_group} & process_sessions().keys()

    @property
    def daemon_runs(self) -> bool:
        return self.own_session in process_sessions()


@contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], list[Child], int]]:
    """The process, its two children, and the guard's pid."""
    command = [sys.executable, "-m", "tests.process.orphan_guard_owner"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children: list[Child] = []
        try:
            children += [child_in(process.stdout.readline()) for _ in range(2)]
            yield process, children, guard_of(process)
        finally:
            process.kill()
            for child in children:
                for pid in (*child.left, child.own_session):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def child_in(line: str) -> Child:
    return Child(*map(int, line.removeprefix("child: ").split()))


def guard_of(process: subprocess.Popen[str]) -> int:
    """Wait for the next guard."""
    assert process.stdout is not None
    return int(process.stdout.readline().removeprefix("guard: "))


def test_what_a_process_leaves_behind_ends_with_it_and_all_of_it_with_their_killed_owner() -> None:
    with owner() as (process, [first, second], guard):
        os.kill(first.leader, signal.SIGKILL)
        assert wait_until(lambda: not first.left, WAIT_S)
        assert len(second.left) == 3
        os.kill(process.pid, signal.SIGKILL)
        assert wait_until(lambda: not second.left, WAIT_S)
        assert first.daemon_runs
        assert second.daemon_runs
        assert wait_until(lambda: guard not in process_sessions(), WAIT_S)


def test_a_guard_that_was_killed_is_followed_by_one_that_knows_as_much() -> None:
    with owner() as (process, [first, second], guard):
        os.kill(guard, signal.SIGKILL)
        guard = guard_of(process)
        os.kill(second.leader, signal.SIGKILL)
        assert wait_until(lambda: not second.left, WAIT_S)
        os.kill(process.pid, signal.SIGKILL)
        assert wait_until(lambda: not first.left, WAIT_S)
        assert wait_until(lambda: not Path(f"/proc/{guard}").exists() or guard not in process_sessions(), WAIT_S)
