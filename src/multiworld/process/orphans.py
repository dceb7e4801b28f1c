"""Reaps processes that ended as this process's children, and that nobody here has started.

An agent is the parent of what workers leave behind (decision 017), and the first process of a container is that of
every orphan in it. Without this each stays in the kernel's table for as long as its parent lives, and counts against
the container's limit.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ..world.processes.procfs import EXITED, child_pids, process_session, process_start_time, process_state
from .spawn.forking import WAITED_FOR

LOOK_S = 1.0
LATE_S = 3.0


class Timers(Protocol):
    """A ``ProgressThread``, or the loop of a process with one thread."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object: ...


class Reaping:
    """Which children of this process are nobody's; ``look`` now and then, about every ``every_s``.

    Those of other sessions are, but for the ones in ``WAITED_FOR``, a look after they have ended. So are ``inherited``
    ones: children that this process had before it started any, as ``sh -c 'command & exec multiworld …'`` leaves them.
    Who starts a process by ``subprocess`` gets one of this session, and may wait for it as late as they like. Where
    sessions tell nothing, as this one began in another pid namespace, they have ``late_s`` for that.
    """

    def __init__(self, inherited: Iterable[int] = (), *, every_s: float = LOOK_S, late_s: float = LATE_S) -> None:
        self._inherited = {pid: process_start_time(pid) for pid in inherited}  # a number may be another process's later
        self.every_s, self._late_s = every_s, late_s
        self._looked_at = time.monotonic()
        self._ended_at: dict[int, float] = {}  # when a look found it ended

    def look(self) -> None:
        before, now = self._looked_at, time.monotonic()
        self._looked_at = now
        if now - before > 2 * self.every_s:  # this process did not run: nobody could wait for anything
            self._ended_at.clear()
        self._ended_at = {pid: self._ended_at.get(pid, now) for pid in _ended_children()}
        for pid, ended_at in self._ended_at.items():
            if now - ended_at >= self._patience_s(pid):
                with contextlib.suppress(ChildProcessError):  # somebody has waited for it just now
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    def _patience_s(self, pid: int) -> float:
        own = os.getsid(0)
        is_inherited = pid in self._inherited and self._inherited[pid] == process_start_time(pid)
        if is_inherited or process_session(pid) != own:
            return self.every_s / 2  # the next look
        return self._late_s if own == 0 else float("inf")


class OrphanReaper:
    """Looks on a loop, from when it is made until that stops. For a process that is nothing but a program of ours."""

    def __init__(self, loop: Timers, reaping: Reaping | None = None) -> None:
        self._loop, self._reaping = loop, reaping or Reaping()
        self._later()

    def _later(self) -> None:
        self._loop.call_later(self._reaping.every_s, self._look)

    def _look(self) -> None:
        self._later()
        self._reaping.look()


def _ended_children() -> set[int]:
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return set()  # as nearly always
    except ChildProcessError:
        return set()
    return {pid for pid in child_pids() if _has_ended(pid)} - WAITED_FOR


def _has_ended(pid: int) -> bool:
    start_time = process_start_time(pid)
    return start_time is not None and process_state(pid, start_time) == EXITED
