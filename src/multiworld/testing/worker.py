"""The worker's side of the kit: it runs one callable or script, reports events and takes commands.

Programs under test import ``report`` and ``wait_command`` or ``next_command`` from here. Run by hand, without a parent,
``report`` prints to standard output.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import inspect
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """What the parent told this worker: a name, and fields that JSON can hold."""

    name: str
    fields: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]


class _Link:
    """The two pipes to the parent, and the thread that reads the second."""

    def __init__(self, report_fd: int, command_fd: int) -> None:
        for fd in (report_fd, command_fd):
            os.set_inheritable(fd, False)  # a grandchild that holds them would hide this process's death
        self._report_fd = report_fd
        self._write_lock = threading.Lock()
        self._commands: deque[Command] = deque()
        self._waiters: deque[Future[Command]] = deque()
        self._lock = threading.Lock()
        self._lines = _read_lines(command_fd)
        self.job: dict[str, Any] = json.loads(next(self._lines))
        threading.Thread(target=self._read_commands, name="worker-commands", daemon=True).start()

    def write(self, line: bytes) -> None:
        with self._write_lock:
            while line:
                line = line[os.write(self._report_fd, line) :]

    def receive(self) -> Future[Command]:
        future: Future[Command] = Future()
        with self._lock:
            if self._commands:
                future.set_result(self._commands.popleft())
            else:
                self._waiters.append(future)
        return future

    def _read_commands(self) -> None:
        for line in self._lines:
            fields = json.loads(line)
            self._deliver(Command(fields.pop("command"), fields))
        # The parent is gone, perhaps by SIGKILL: nobody else would end this process.
        os.kill(os.getpid(), signal.SIGKILL)

    def _deliver(self, command: Command) -> None:
        with self._lock:
            while self._waiters:
                waiter = self._waiters.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(command)
                    return
            self._commands.append(command)


def _read_lines(fd: int) -> Iterator[bytes]:
    """Yield lines until the end. Not a file object: held by a daemon thread, its lock aborts the interpreter's exit."""
    partial = b""
    while chunk := os.read(fd, 65536):
        *lines, partial = (partial + chunk).split(b"\n")
        yield from lines


_link: _Link | None = None


def report(event: str, /, **fields: Any) -> float:
    """Tell the parent that ``event`` happened now; return the time sent: CLOCK_MONOTONIC, comparable on one machine.

    ``fields`` must fit JSON. An ``at=`` among them replaces the time of this call, for what happened a little earlier.
    """
    at = float(fields.pop("at", time.monotonic()))
    line = json.dumps({"event": event, "at": at, "fields": fields})
    if _link is None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    else:
        _link.write(line.encode() + b"\n")
    return at


def wait_command(timeout_s: float | None = None) -> Command:
    """Block until the parent's next command. Raises ``TimeoutError`` after ``timeout_s`` seconds."""
    future = _require_link().receive()
    wait([future], timeout_s)
    if future.cancel():
        raise TimeoutError(f"no command came within {timeout_s} s")
    return future.result()


async def next_command() -> Command:
    """Return the parent's next command. Cancelling it loses no command that has not come yet."""
    return await asyncio.wrap_future(_require_link().receive())


def _require_link() -> _Link:
    if _link is None:
        raise RuntimeError("commands come only to a worker that a WorkerGroup started")
    return _link


def main(report_fd: int, command_fd: int) -> None:
    """Run what the parent's first line says. Called by the interpreter that ``WorkerGroup.start`` launches."""
    global _link
    os.setpgid(0, 0)  # one signal ends the worker with its children; orphaned and stopped, the kernel hangs it up
    faulthandler.enable(file=2)  # a crash shows where, in all threads
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
    _link = _Link(report_fd, command_fd)
    job = _link.job
    sys.path.extend(entry for entry in job["path"] if entry not in sys.path)
    try:
        value = _run_script(job) if job["script"] else _call(job)
    except Exception as error:
        report("raised", type=type(error).__name__, message=str(error), traceback=traceback.format_exc())
        raise
    report("returned", value=value)


def _run_script(job: Mapping[str, Any]) -> Any:
    sys.argv = [job["target"], *job["args"]]
    sys.path.insert(0, os.path.dirname(os.path.abspath(job["target"])))
    return runpy.run_path(job["target"], run_name="__main__").get("RESULT")


def _call(job: Mapping[str, Any]) -> Any:
    function = _resolve(job["target"])
    value = function(*job["args"], **job["kwargs"])
    return asyncio.run(_finish(value)) if inspect.isawaitable(value) else value


async def _finish(value: Any) -> Any:
    return await value


def _resolve(target: str) -> Callable[..., Any]:
    module, _, qualified_name = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in qualified_name.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{target} is a {type(found).__name__}, not a callable")
    resolved: Callable[..., Any] = found
    return resolved
