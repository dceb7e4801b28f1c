"""The agent's handle on one worker process: its signals, its end, and the end of what it has started."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
from collections.abc import Callable

from ..wire.backoff import BackOff
from ..wire.progress.thread import Timer
from ..world.processes.kept_process import Loop
from ..world.processes.procfs import child_pids, process_session
from .facts import catches_signal, is_pending, threads_blocking
from .spawn.forking import WAITED_FOR
from .spawn.fresh import DUMP_SIGNAL

logger = logging.getLogger(__name__)

UNKNOWN_RETURNCODE = 255
"""Of a worker whose exit status somebody else in this process took."""
FIRST_SWEEP_S, LAST_SWEEP_S = 0.005, 30.0
GUARDED_S = 1.0


class WorkerProcess:
    """A child of this process that leads a process group. All calls on the loop's thread."""

    def __init__(self, loop: Loop, pid: int, on_exit: Callable[[int], None]) -> None:
        """``on_exit`` gets the exit status as ``subprocess`` has it: negative for a signal. It is called once."""
        self.pid = pid
        self.returncode: int | None = None
        self._loop, self._on_exit = loop, on_exit
        self._kill_at: Timer | None = None
        self._never_dump: set[int] = set()  # threads that block the signal for it anyway
        self._sweeps = BackOff(FIRST_SWEEP_S, LAST_SWEEP_S)
        self._pidfd = os.pidfd_open(pid)
        try:
            loop.register(self._pidfd, select.EPOLLIN, self)
        except OSError:
            os.close(self._pidfd)
            raise
        WAITED_FOR.add(pid)

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.pid}{'' if self.returncode is None else f' ended {self.returncode}'}>"

    def signal(self, signum: int) -> None:
        """Send a signal to the worker and to what it has started in its process group."""
        if self.returncode is None:  # until then the pid is reserved: nobody else can be hit
            _signal_group(self.pid, signum)

    def stop(self, signum: int, grace_s: float) -> None:
        """Send a signal now, and SIGKILL when the grace is over. Called again, only an earlier end counts."""
        if self.returncode is not None:
            return
        timer = self._loop.call_later(grace_s, self.kill)
        if self._kill_at is None:
            self._kill_at = timer
            self.signal(signum)
        else:
            later = max(self._kill_at, timer)
            self._kill_at = min(self._kill_at, timer)
            later.cancel()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def dump_stacks(self) -> bool:
        """Have the worker write all its stacks to standard error. False if it is not prepared for that.

        A worker that runs another program than Python, or has not come to the user's program yet, is not.
        """
        if self.returncode is not None or not catches_signal(self.pid, DUMP_SIGNAL):
            return False
        self._never_dump = threads_blocking(self.pid, DUMP_SIGNAL)
        os.kill(self.pid, DUMP_SIGNAL)
        return True

    @property
    def is_dumping(self) -> bool:
        """Whether the worker has still to write stacks. The kernel blocks a signal while its handler runs."""
        if self.returncode is not None:
            return False
        return is_pending(self.pid, DUMP_SIGNAL) or bool(threads_blocking(self.pid, DUMP_SIGNAL) - self._never_dump)

    def on_ready(self, events: int) -> None:
        """It has ended. What is left of its group goes with it, while its pid still reserves the group's number."""
        try:
            returncode = _peek_returncode(self.pid)
            if returncode is None:
                return
            _signal_group(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            logger.warning("somebody else took the exit status of worker process %d", self.pid)
            returncode = UNKNOWN_RETURNCODE
        self.close_descriptor()
        WAITED_FOR.discard(self.pid)
        self.returncode = returncode
        if self._kill_at is not None:
            self._kill_at.cancel()
        self._sweep()
        self._on_exit(returncode)

    def on_failure(self, error: BaseException) -> None:
        self.close_descriptor()

    def close_descriptor(self) -> None:
        if self._pidfd >= 0:
            self._loop.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _sweep(self) -> None:
        """Reap the killed rest of the session, whose parent this process has become. Nothing announces their end.

        The guard kills what has a group of its own, a moment later.
        """
        is_left, again_s = True, self._sweeps.next_s()
        try:
            while os.waitid(os.P_PGID, self.pid, os.WEXITED | os.WNOHANG) is not None:
                pass
        except ChildProcessError:  # none is left of its group
            is_left = again_s <= GUARDED_S
        _reap_session(self.pid)
        if is_left and again_s < LAST_SWEEP_S:
            self._loop.call_later(again_s, self._sweep)


def _reap_session(session: int) -> None:
    """Reap children of that session: nothing that this process has started itself belongs to it."""
    with contextlib.suppress(ChildProcessError):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    for pid in child_pids():
        with contextlib.suppress(ChildProcessError):
            if process_session(pid) == session:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _peek_returncode(pid: int) -> int | None:
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _signal_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # none left; or another user's by a setuid program
        os.killpg(pid, signum)
