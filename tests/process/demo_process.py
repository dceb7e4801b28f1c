"""A running ``multiworld demo``, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multiworld.testing.deadlines import scaled
from tests import warm_programs


class Demo:
    """A running ``multiworld demo`` with its output, and all the processes that it has started so far."""

    def __init__(self, *arguments: str) -> None:
        self.process = warm_programs.Popen(
            [sys.executable, "-m", "multiworld", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, text: str) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in:\n{''.join(lines)}")

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=scaled(90))
        return self.process.returncode, output

    def descendants(self) -> dict[int, int]:
        """Return when each process below this one was started, by its id."""
        parents = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                parents[int(folder.name)] = _stat(int(folder.name), PARENT)
        found, last = set(), {self.process.pid}
        while last:
            last = {pid for pid, parent in parents.items() if parent in last}
            found |= last
        return {pid: _stat(pid, START_TIME) for pid in found}


PARENT, START_TIME = 1, 19  # fields of /proc/PID/stat after the name


def _stat(pid: int, field: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[field])


def still_run(processes: dict[int, int]) -> set[int]:
    """Return which of these have not ended; an id that another process has by now is none."""
    return {pid for pid, start_time in processes.items() if start_time >= 0 and _stat(pid, START_TIME) == start_time}


def start_demo(demos: list[Demo], *arguments: str) -> Demo:
    demos.append(Demo(*arguments))
    return demos[-1]


@contextmanager
def started_demos() -> Iterator[list[Demo]]:
    """Give a list of those that were started, which end with this."""
    started: list[Demo] = []
    try:
        yield started
    finally:
        for demo in started:
            processes = demo.descendants()
            if demo.process.poll() is None:
                demo.process.kill()
            demo.process.communicate()
            for pid in still_run(processes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
