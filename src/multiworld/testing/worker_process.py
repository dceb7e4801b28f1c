"""The process of a worker, as the kit holds it: a child of this process, or of a launcher such as ``mpiexec``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ..world.processes.procfs import stat_fields
from .deadlines import wait_until

BOOTSTRAP = "from multiworld.testing.worker import main; main({report_fd}, {command_fd})"
UNKNOWN_STATUS = 256  # no exit status is that
STOPS_WITHIN_S = 10.0


class Ends(NamedTuple):
    """The descriptors that a worker's process gets: its ends of two pipes, and where its output goes."""

    report_fd: int
    command_fd: int
    stdout_fd: int
    stderr_fd: int


class WorkerProcess(Protocol):
    pid: int
    pidfd: int
    """Readable when the process has ended."""

    @property
    def returncode(self) -> int | None:
        """The exit status (``-N`` for signal N), ``None`` while it runs."""

    def signal(self, number: int) -> None:
        """Send it a signal. One that has ended already takes no notice."""

    def wait_stopped(self) -> None:
        """Block until it stands still or has ended."""

    def kill(self) -> None:
        """Kill it with all that it has started, and block until it has ended."""

    def close(self) -> None:
        """Reap it and close what is held. Only after ``kill``."""


class ChildProcess:
    """A process of our own, which nobody else reaps: its pid stays its own until ``close``."""

    def __init__(
        self, ends: Ends, name: str, target: str, *, netns: str | None, env: Mapping[str, str], cwd: str | None
    ) -> None:
        prefix = [] if netns is None else ["ip", "netns", "exec", netns]
        bootstrap = BOOTSTRAP.format(report_fd=ends.report_fd, command_fd=ends.command_fd)
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", bootstrap, name, target],
            stdin=subprocess.DEVNULL,
            stdout=ends.stdout_fd,
            stderr=ends.stderr_fd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            cwd=cwd,
            pass_fds=(ends.report_fd, ends.command_fd),
        )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    @property
    def returncode(self) -> int | None:
        if self._process.returncode is not None:
            return self._process.returncode
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_stopped(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is younger than its own process group
            os.killpg(self.pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self._process.wait()
        os.close(self.pidfd)


class ForeignProcess:
    """A process that another has started, who learns its status and reaps it at any moment.

    So it is only ever reached by a descriptor: its pid may soon be another's.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    @property
    def returncode(self) -> int | None:
        return UNKNOWN_STATUS if self._has_ended(0) else None

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def wait_stopped(self) -> None:
        wait_until(lambda: self._has_ended(0) or process_state(self.pid) in "Tt", STOPS_WITHIN_S)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._has_ended(None)

    def close(self) -> None:
        os.close(self.pidfd)

    def _has_ended(self, timeout_ms: int | None) -> bool:
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(timeout_ms))


def process_state(pid: int) -> str:
    """Return the letter that the system has for what the process does; ``X`` if there is none."""
    fields = stat_fields(pid)
    return "X" if fields is None else fields[0]
