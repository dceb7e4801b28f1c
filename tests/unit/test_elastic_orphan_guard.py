"""A guard that is replaced, while this process goes on, kills nothing."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

from multiworld.elastic.forking import WAITED_FOR
from multiworld.elastic.orphan_guard import OrphanGuard
from multiworld.testing import wait_until
from multiworld.wire.progress import ProgressThread


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
