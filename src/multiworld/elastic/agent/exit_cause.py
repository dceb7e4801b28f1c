"""Find out why a worker ended, from what it left: its status, error file and last lines, and what the kernel says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...process.logs.output import LAST_LINES
from ...process.memory_kills import MemoryKills
from ...wire.messages import Json, is_json
from ..job.assignment import Assignment
from ..job.failure import FailureCause, WorkerFailure
from ..job.tracebacks import exception_line, fatal_line, find_cause, last_traceback

ERROR_FILE_BYTES = 1024 * 1024
TRACEBACK_CHARACTERS = 32 * 1024  # it crosses the network with each report
RECORD_DELAY_US = 60_000_000  # an error file this much older than the exit is not about it
DUMP_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What is left of a worker. ``tail``: the end of its stderr; ``at_us``: when its exit was seen."""

    assignment: Assignment
    role: str
    hostname: str
    pid: int
    returncode: int | None
    at_us: int
    error_file: str = ""
    tail: Sequence[str] = ()


@dataclass(frozen=True)
class _Error:
    """What ``record`` wrote into an error file."""

    data: Mapping[str, Json]
    message: str
    traceback: str | None
    written_us: int


def examine(
    remains: Remains, *, kills: MemoryKills, cause: FailureCause | None = None, message: str = ""
) -> WorkerFailure:
    """Return what is known of a worker's end. ``cause`` and ``message``: what the caller knows better, if anything."""
    error = _read_error(remains.error_file) if remains.error_file else None
    traceback = error.traceback if error is not None else None
    if error is None and remains.returncode == 1:  # what Python exits with after an exception, and seldom else
        traceback = last_traceback(remains.tail)
    if traceback is not None:
        traceback = _cut(traceback)
    found = find_cause(traceback or "")
    assignment = remains.assignment
    return WorkerFailure(
        rank=assignment.rank,
        local_rank=assignment.local_rank,
        node_rank=assignment.node_rank,
        role=remains.role,
        hostname=remains.hostname,
        pid=remains.pid,
        generation=assignment.generation,
        returncode=remains.returncode,
        at_us=_failed_at_us(remains.at_us, error),
        cause=cause or _decide_cause(remains, bool(error or traceback), kills),
        message=message or (error.message if error else _said(remains, traceback)),
        traceback=traceback,
        error_file=remains.error_file or None,
        error_data=error.data if error is not None else None,
        last_lines=tuple(remains.tail[-LAST_LINES:]),
        caused_by_rank=found.rank if found is not None else None,
        caused_by_world=found.world if found is not None else None,
    )


def dump_stacks(pid: int) -> bytes | None:
    """Return the Python stacks of a process as ``py-spy`` shows them, None if it is not installed or not permitted.

    Blocks for up to 2 s: not for a thread that answers heartbeats.
    """
    py_spy = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))
    if py_spy is None:
        return None
    try:
        done = subprocess.run(
            [py_spy, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DUMP_S,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout if done.returncode == 0 and done.stdout else None


def _decide_cause(remains: Remains, told: bool, kills: MemoryKills) -> FailureCause:
    if remains.returncode == -signal.SIGKILL and kills.claim(remains.pid):
        return FailureCause.OUT_OF_MEMORY
    if told:  # even if a signal came later: an exception was the beginning of its end
        return FailureCause.EXCEPTION
    is_signal = remains.returncode is not None and remains.returncode < 0
    return FailureCause.SIGNAL if is_signal else FailureCause.EXIT


def _said(remains: Remains, traceback: str | None) -> str:
    if traceback is not None:
        return exception_line(traceback) or ""
    return fatal_line(remains.tail) or "" if remains.returncode is not None and remains.returncode < 0 else ""


def _failed_at_us(exited_us: int, error: _Error | None) -> int:
    """Return when the exception was recorded, if it was: ending the process takes its time, and others fail in it."""
    if error is not None and 0 <= exited_us - error.written_us <= RECORD_DELAY_US:
        return error.written_us
    return exited_us


def _read_error(path: str) -> _Error | None:
    """Return what the worker recorded, None if it did not, or wrote what nobody can read."""
    try:
        with Path(path).open("rb") as file:
            written_us = os.fstat(file.fileno()).st_mtime_ns // 1000
            data = json.loads(file.read(ERROR_FILE_BYTES), parse_constant=str)  # a message has no NaN
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or "message" not in data:
        return None
    if not is_json(data):  # a message can hold all but what is nested without end, or a number without end
        data = {"message": str(data["message"])[:TRACEBACK_CHARACTERS]}
    recorded = data["message"]
    if not isinstance(recorded, dict):
        return _Error(data, str(recorded), None, written_us)
    extra = recorded.get("extraInfo")
    traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
    if isinstance(extra, dict) and isinstance(traceback, str):
        extra["py_callstack"] = traceback = _cut(traceback)
    return _Error(data, str(recorded.get("message", "")), traceback if isinstance(traceback, str) else None, written_us)


def _cut(traceback: str) -> str:
    """Keep both ends of one that is too long, such as that of an endless recursion."""
    if len(traceback) <= TRACEBACK_CHARACTERS:
        return traceback
    half = TRACEBACK_CHARACTERS // 2
    return f"{traceback[:half]}\n... {len(traceback) - 2 * half} characters left out ...\n{traceback[-half:]}"
