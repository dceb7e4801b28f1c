"""Learn from the kernel whether it killed a process for lack of memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ..world.processes.procfs import control_groups, text_of

KMSG_RECORDS = 20_000  # more than a kernel's buffer holds; it ends even if records come faster than they are read


class MemoryKills:
    """The kernel's out-of-memory kills in this process's memory cgroup, from now on.

    Where there is no cgroup to ask, those of the whole machine count.
    """

    def __init__(
        self, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup"), kmsg: Path = Path("/dev/kmsg")
    ) -> None:
        self._counter = _find_counter(proc, cgroups)
        self._claimed = self._count()
        self._kmsg = kmsg
        self._since_us = time.monotonic_ns() // 1000

    def claim(self, pid: int) -> bool:
        """Return whether ``pid``, which SIGKILL ended, was one of them. One kill is claimed by one process only.

        The counter does not say which process it was, only the kernel's log does, and that is seldom readable.
        """
        if self._count() > self._claimed:
            self._claimed += 1
            return True
        return self._is_named(pid)

    def _count(self) -> int:
        try:
            found = re.search(r"^oom_kill (\d+)$", self._counter.read_text(), re.MULTILINE) if self._counter else None
        except OSError:  # the cgroup was removed, or may not be read
            return 0
        return int(found[1]) if found else 0

    def _is_named(self, pid: int) -> bool:
        pattern = re.compile(rb"Killed process %d |oom-kill:.*\bpid=%d\b" % (pid, pid))
        try:
            descriptor = os.open(self._kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return any(pattern.search(record) and _time_us(record) >= self._since_us for record in _records(descriptor))
        finally:
            os.close(descriptor)


def _time_us(record: bytes) -> int:
    """Return when a record of the kernel's log was written: ``priority,number,microseconds,flags;text``."""
    fields = record.partition(b";")[0].split(b",")
    return int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else 0


def _records(descriptor: int) -> Iterator[bytes]:
    for _ in range(KMSG_RECORDS):
        try:
            record = os.read(descriptor, 8192)
        except BrokenPipeError:  # this record was overwritten meanwhile
            continue
        except OSError:  # no more, or not permitted
            return
        if not record:
            return
        yield record


def _find_counter(proc: Path, cgroups: Path) -> Path | None:
    candidates: list[Path] = []
    for controllers, path in control_groups(text_of(str(proc / "self" / "cgroup"))):
        inside = path.lstrip("/")
        if "memory" in controllers:
            candidates += [
                cgroups / "memory" / inside / "memory.oom_control",
                cgroups / "memory" / "memory.oom_control",
            ]
        elif not controllers:
            candidates += [cgroups / inside / "memory.events", cgroups / "memory.events"]
    candidates.append(proc / "vmstat")
    return next((path for path in candidates if path.is_file()), None)
