"""A guard that is replaced kills nothing; one that is short of descriptors guards all the same."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from multiworld.process import orphan_guard_program
from multiworld.process.orphan_guard import OrphanGuard
from multiworld.process.spawn.forking import WAITED_FOR
from multiworld.testing import wait_until
from multiworld.wire.progress.thread import ProgressThread


class HungUp:
    """The pipe to a guard; notes how that had ended when its end was closed, None if it had not."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._pipe = process, process.stdin
        self.guards_end: list[int | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def close(self) -> None:
        assert self._pipe is not None
        self.guards_end.append(self._process.poll())
        self._pipe.close()


def test_a_guard_that_is_replaced_does_not_see_the_end_of_its_input() -> None:
    loop = ProgressThread("test-orphan-guard")
    guard = OrphanGuard(loop)
    try:
        guard.begin()
        running = guard._kept.current
        assert running is not None
        pipe: Any = HungUp(running._process)
        running._process.stdin = pipe
        loop.call_soon(lambda: guard._kept._ended("was stopped"))
        assert wait_until(lambda: guard.pid not in (None, running.pid), 10.0)
        assert pipe.guards_end == [-signal.SIGKILL]
        assert running.pid not in WAITED_FOR
    finally:
        loop.stop()
        guard.close()


LEADER = ["sh", "-c", "sleep 100 & echo $!; wait"]


def test_a_guard_without_descriptors_for_all_watches_the_rest_when_it_can() -> None:
    few = 16  # for eight of them, and eight in reserve
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", orphan_guard_program.__file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few)),
    )
    assert guard.stdin is not None
    leaders = [subprocess.Popen(LEADER, stdout=subprocess.PIPE, start_new_session=True, text=True) for _ in range(20)]
    try:
        children = [int(leader.stdout.readline()) for leader in leaders if leader.stdout is not None]
        guard.stdin.write("".join(f"{leader.pid}\n" for leader in leaders).encode())
        guard.stdin.flush()
        assert wait_until(lambda: len(os.listdir(f"/proc/{guard.pid}/fd")) >= few // 2, 10.0)
        for leader in reversed(leaders):
            leader.kill()
            leader.wait()
        assert wait_until(lambda: not any(map(runs, children)), 10.0)
        assert guard.poll() is None
    finally:
        guard.stdin.close()
        guard.wait()
        for leader in leaders:
            with suppress(ProcessLookupError):  # none is left, as it should be
                os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
            assert leader.stdout is not None
            leader.stdout.close()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
