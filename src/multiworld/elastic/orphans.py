"""Reaps what workers had started and left behind: the agent is the parent of such processes (decision 017).

Without that each stays in the kernel's table for as long as the agent lives, and counts against its container's limit.
"""

from __future__ import annotations

import contextlib
import os
import time

from ..wire.progress import ProgressThread
from ..world.procfs import EXITED, child_pids, process_start_time, process_state
from .forking import WAITED_FOR

__all__ = ["OrphanReaper"]

LOOK_S = 10.0


class OrphanReaper:
    """For a process all of whose children are the agent's own: those that it waits for itself are gone within a look.

    On the progress thread, from when it is made until that stops.
    """

    def __init__(self, loop: ProgressThread, every_s: float = LOOK_S) -> None:
        self._loop, self._every_s = loop, every_s
        self._looked_at = time.monotonic()
        self._ended_before: set[int] = set()
        loop.call_later(every_s, self._look)

    def _look(self) -> None:
        self._loop.call_later(self._every_s, self._look)
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before > 2 * self._every_s:  # this process did not run: nobody could wait for anything
            self._ended_before.clear()
        ended = {pid for pid in child_pids() if _has_ended(pid)} - WAITED_FOR
        for pid in ended & self._ended_before:
            with contextlib.suppress(ChildProcessError):  # somebody has waited for it just now
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
        self._ended_before = ended


def _has_ended(pid: int) -> bool:
    start_time = process_start_time(pid)
    return start_time is not None and process_state(pid, start_time) == EXITED
