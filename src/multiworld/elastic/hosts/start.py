"""Start one launcher on each of several hosts, over ssh or what stands for it, and see all of them end."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from types import FrameType

from ...process.interruption import ENDING, SIGNALLED, taken
from ...process.orphans import Reaping
from ...process.spawn.forking import WAITED_FOR
from ...process.spawn.missing_command import start_error
from ...wire.messages import to_json
from ...world.processes.procfs import child_pids
from .far_order import END_S
from .shares import RemoteJob

AGREE_S = 2.0  # a job that has failed ends on all hosts within this time, by itself
STATUS_HINTS = {
    255: "was it reached, and can you log in there without a password?",
    127: "is that Python there? --python names another",
    126: "is that Python there? --python names another",
}


def run_on_hosts(job: RemoteJob, tell: Callable[[str], object]) -> int:
    """Run the job to its end on all hosts; returns its exit status: 128 + N after signal N, on the main thread only.

    ``tell`` is given what this end alone can say, a line at a time.
    """
    hosts = _Hosts(job, tell)
    with taken(ENDING, hosts.note):
        try:
            hosts.start()
            return hosts.wait()
        finally:
            hosts.close()


class _Hosts:
    """The processes that hold on to the far ends."""

    def __init__(self, job: RemoteJob, tell: Callable[[str], object]) -> None:
        self._job, self._tell = job, tell
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[Thread] = []
        self._news: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # which host has ended; None: a signal came
        self._statuses: dict[int, int] = {}
        self._reaping = Reaping(child_pids())
        self._signals: list[int] = []
        self._next_step: Callable[[], None] | None = None
        self._due = 0.0

    def note(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)
        self._news.put(None)

    def start(self) -> None:
        """Raises ValueError if there is no such command as ssh."""
        for index in range(len(self._job.shares)):
            command = self._job.command(index)
            try:
                # a session of its own: Ctrl-C is for us, and the far ends are told by us
                process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
            except OSError as error:
                reason = start_error(error, command[0], os.environ).strerror
                raise ValueError(f"--ssh: {command[0]} cannot be started: {reason}") from error
            WAITED_FOR.add(process.pid)
            self._processes.append(process)
            self._threads.append(Thread(target=self._attend, args=(index, process), daemon=True))
            self._threads[-1].start()

    def wait(self) -> int:
        while len(self._statuses) < len(self._processes):
            try:
                index = self._news.get(timeout=self._remaining_s())
            except queue.Empty:
                self._reaping.look()
                if self._next_step is not None and time.monotonic() >= self._due:
                    self._take_step()
                continue
            if index is None:
                self._signalled()
            else:
                self._ended(index)
        self._explain()
        if self._signals:
            return SIGNALLED + self._signals[0]
        return next((status for status in self._statuses.values() if status), 0)

    def close(self) -> None:
        """End what is left, at once."""
        self._kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            self._let_go(process)

    def _attend(self, index: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, or is to end: its status says why
            process.stdin.write(json.dumps(to_json(self._job.order(index))).encode() + b"\n")
        process.wait()
        WAITED_FOR.discard(process.pid)
        self._news.put(index)

    def _remaining_s(self) -> float:
        every_s = self._reaping.every_s
        return every_s if self._next_step is None else min(every_s, max(0.0, self._due - time.monotonic()))

    def _take_step(self) -> None:
        step, self._next_step = self._next_step, None
        if step is not None:
            step()

    def _in(self, seconds: float, step: Callable[[], None]) -> None:
        self._next_step, self._due = step, time.monotonic() + seconds

    def _ended(self, index: int) -> None:
        status = self._processes[index].returncode
        self._statuses[index] = status if status >= 0 else SIGNALLED - status
        if status and self._next_step is None and not self._signals:
            self._in(AGREE_S, self._release)

    def _signalled(self) -> None:
        if len(self._signals) == 1:
            self._release()
        else:
            self._kill()

    def _release(self) -> None:
        """Have the far ends end the job: they see the end of their input."""
        for process in self._processes:
            self._let_go(process)
        self._in(END_S, self._kill)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    def _explain(self) -> None:
        """Say which host the job failed for, if its launchers have not said it all: they end alike if they have."""
        failed = {index: status for index, status in self._statuses.items() if status}
        if self._signals or not failed:
            return
        index, status = next(iter(failed.items()))
        name = self._job.shares[index].name
        if index in self._job.here:
            if len(failed) == 1 and len(self._statuses) > 1:
                self._tell(f"{name} ended with status {status}, and the job was ended on the other hosts")
            return
        is_launchers = len(failed) == len(self._statuses) and len(set(failed.values())) == 1
        if is_launchers and (len(failed) > 1 or status not in STATUS_HINTS):
            return
        hint = STATUS_HINTS.get(status)
        self._tell(
            f"{name}: {self._job.ssh[0]} ended with status {status}"
            + (", and the job was ended on the other hosts" if len(self._statuses) > 1 else "")
            + (f": {hint}" if hint else "")
        )
