"""A real worker process for tests: what it reports, what it is told, how it is stopped, killed and reaped."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from ..errors import MultiworldError
from .deadlines import Deadline
from .worker_process import Ends, WorkerProcess, process_state

DEFAULT_TIMEOUT_S = 20.0
SHOWN_CHARS = 6000
SHOWN_EVENTS = 20
PIPE_BYTES = 256 * 1024  # room for some thousand reports: a worker does not wait for its parent to read


@dataclass(frozen=True)
class Report:
    """An event of a worker. ``at`` is its CLOCK_MONOTONIC in seconds, comparable with ``time.monotonic()`` here."""

    event: str
    at: float
    fields: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]


class WorkerFailedError(MultiworldError, AssertionError):
    """A worker did not do what was waited for; ``details`` holds its state, events and standard error."""

    def __init__(self, worker: str, reason: str, details: str) -> None:
        super().__init__(worker, reason, details)
        self.worker, self.reason, self.details = worker, reason, details

    def __str__(self) -> str:
        return f"worker {self.worker!r} {self.reason}\n{self.details}"


class Worker:
    """One worker process. Made by ``WorkerGroup.start``; use it from one thread."""

    def __init__(self, name: str, job: Mapping[str, Any], start: Callable[[Ends], WorkerProcess]) -> None:
        self.name, self.target = name, str(job["target"])
        self._report_fd, child_report_fd = os.pipe()
        child_command_fd, self._command_fd = os.pipe()
        self._stdout: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self.started_at = time.monotonic()
        try:
            self._process = start(Ends(child_report_fd, child_command_fd, self._stdout.fileno(), self._stderr.fileno()))
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(child_report_fd)
            os.close(child_command_fd)
        self.pid = self._process.pid
        os.set_blocking(self._report_fd, False)
        fcntl.fcntl(self._report_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._partial = b""
        self._drained = False
        self._closed = False
        self._status: int | None = None  # once it is closed
        self._texts = ("", "")
        self._unread: list[Report] = []
        self.reports: list[Report] = []
        """All events so far, in order; grows while this object waits for something."""
        self._write(job)

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} pid={self.pid} {self.state}>"

    def await_event(self, event: str | tuple[str, ...], timeout_s: float = DEFAULT_TIMEOUT_S, **fields: Any) -> Report:
        """Block until the worker reports ``event`` (or one of these) with these fields; each report is returned once.

        Others stay for later calls. Raises ``WorkerFailedError`` when the scaled time is over, or as soon as the worker
        has ended or its function has raised.
        """
        deadline = Deadline(timeout_s)
        while True:
            found = self.take_event(event, **fields)
            if found is not None:
                return found
            if deadline.expired:
                raise self.failure(f"did not report {event!r} within {deadline.timeout_s:g} s")
            wait_for_news([self], deadline.remaining_s())

    def take_event(self, event: str | tuple[str, ...], **fields: Any) -> Report | None:
        """As ``await_event``, without waiting: None if it has not been reported until now."""
        names = (event,) if isinstance(event, str) else event
        ended = self._pump()
        found = self._take(names, fields)
        if found is None and ended:
            raise self.failure(f"ended before it reported {event!r}")
        if found is None and any(report.event == "raised" for report in self._unread):
            raise self.failure(f"raised before it reported {event!r}")
        return found

    def events(self, event: str) -> list[Report]:
        """Return all reports of ``event`` that have come until now, whether awaited or not."""
        self._pump()
        return [report for report in self.reports if report.event == event]

    def command(self, name: str, /, **fields: Any) -> None:
        """Tell the worker something; it reads that with ``worker.wait_command()`` or ``worker.next_command()``."""
        self._write({"command": name, **fields})

    def kill(self) -> float:
        """Send SIGKILL to the worker alone (also when it is stopped); return the monotonic time just before."""
        return self.signal(signal.SIGKILL)

    def stop(self) -> float:
        """Send SIGSTOP, block until the worker stands still; return the monotonic time just before the signal."""
        at = self.signal(signal.SIGSTOP)
        self._process.wait_stopped()
        return at

    def cont(self) -> float:
        """Let a stopped worker go on; return the monotonic time just before."""
        return self.signal(signal.SIGCONT)

    def signal(self, number: int) -> float:
        """Send any signal; return the monotonic time just before. One that has ended already takes no notice."""
        if self._closed:
            raise ValueError(f"worker {self.name!r} is closed: its pid {self.pid} may be another process by now")
        at = time.monotonic()
        self._process.signal(number)
        return at

    def wait(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Block until the worker has ended and return its exit status (``-N`` for signal N).

        That of a process which another has started is ``UNKNOWN_STATUS``.
        """
        deadline = Deadline(timeout_s)
        poller = select.poll()
        poller.register(self._process.pidfd, select.POLLIN)
        if not poller.poll(deadline.remaining_s() * 1000):
            raise self.failure(f"did not end within {deadline.timeout_s:g} s")
        self._pump()
        returncode = self.returncode
        assert returncode is not None
        return returncode

    @property
    def returncode(self) -> int | None:
        """The exit status, ``None`` while the worker runs."""
        return self._process.returncode if self._status is None else self._status

    @property
    def descriptors(self) -> tuple[int, int]:
        """What becomes readable when the worker has ended, or has reported something."""
        return self._process.pidfd, self._report_fd

    @property
    def state(self) -> str:
        """``"running"``, ``"stopped"`` or ``"ended with N"``."""
        if self.returncode is not None:
            return f"ended with {self.returncode}"
        return "stopped" if process_state(self.pid) in "Tt" else "running"

    @property
    def stdout(self) -> str:
        """What the worker has written to standard output so far."""
        return self._texts[0] if self._closed else _read_all(self._stdout)

    @property
    def stderr(self) -> str:
        """What the worker has written to standard error so far."""
        return self._texts[1] if self._closed else _read_all(self._stderr)

    def describe(self) -> str:
        """Return state, last events and the end of standard error, as a failed test prints them."""
        self._pump()
        lines = [f"{self.name} ({self.target}, pid {self.pid}): {self.state}"]
        for report in self.reports[-SHOWN_EVENTS:]:
            fields = dict(report.fields)
            trace = str(fields.pop("traceback", ""))
            lines.append(f"    +{report.at - self.started_at:8.3f} s  {report.event}  {fields or ''}".rstrip())
            lines.extend("    | " + line for line in trace.splitlines())
        if self.stderr:
            lines.append("    standard error:")
            lines.extend("    | " + line for line in self.stderr[-SHOWN_CHARS:].splitlines())
        return "\n".join(lines)

    def failure(self, reason: str) -> WorkerFailedError:
        """Return the error that says what this worker did not do, and all that it did."""
        return WorkerFailedError(self.name, reason, self.describe())

    def close(self) -> None:
        """Kill the worker and its process group, reap it and close everything. Idempotent."""
        if self._closed:
            return
        self._process.kill()
        self._pump()
        self._texts = self.stdout, self.stderr
        self._status = self._process.returncode
        self._closed = True
        self._process.close()
        self._close_files()

    def _write(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._command_fd, line) :]
        except BrokenPipeError:
            raise self.failure("ended before it could be told something") from None

    def _pump(self) -> bool:
        """Read what has come; return whether the worker has ended and all it reported is here."""
        if self._drained:
            return True
        poller = select.poll()
        poller.register(self._process.pidfd, select.POLLIN)
        gone = bool(poller.poll(0))  # looked at before reading: what it wrote before its end is in the pipe
        while True:
            try:
                chunk = os.read(self._report_fd, 65536)
            except BlockingIOError:
                break
            if not chunk:
                break
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            for line in lines:
                report = Report(**json.loads(line))
                self.reports.append(report)
                self._unread.append(report)
        self._drained = gone
        return gone

    def _take(self, events: tuple[str, ...], fields: Mapping[str, Any]) -> Report | None:
        for index, report in enumerate(self._unread):
            if report.event in events and fields.items() <= report.fields.items():
                return self._unread.pop(index)
        return None

    def _close_files(self) -> None:
        os.close(self._report_fd)
        os.close(self._command_fd)
        self._stdout.close()
        self._stderr.close()


def wait_for_news(workers: Iterable[Worker], timeout_s: float) -> None:
    """Block until one of the workers has reported something or has ended, or the time is over."""
    poller = select.poll()
    for worker in workers:
        for descriptor in worker.descriptors:
            poller.register(descriptor, select.POLLIN)
    poller.poll(timeout_s * 1000)


def _read_all(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")
