"""Read from ``/proc`` whether a process runs. Standard library only: the sentinel's child runs this file on its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

RUNNING, STOPPED, EXITED, UNKNOWN = "running", "stopped", "exited", "unknown"


def process_start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot, or None if it is gone or hidden.

    Together with the pid it names one process for good: pids are used again.
    """
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def process_state(pid: int, start_time: int) -> str:
    """Return RUNNING, STOPPED (also traced or frozen), EXITED (also replaced by another process) or UNKNOWN."""
    fields = stat_fields(pid)
    if fields is None:
        return UNKNOWN if _exists(pid) else EXITED
    if int(fields[19]) != start_time:
        return EXITED
    state, num_threads = fields[0], int(fields[17])
    if state in "Tt":
        return STOPPED
    if state in "ZXx":
        # A main thread that ended before its process shows as a zombie while other threads go on.
        return RUNNING if num_threads > 1 else EXITED
    return STOPPED if _is_frozen(pid) else RUNNING


def is_uninterruptible(pid: int, start_time: int) -> bool:
    """Whether the process sleeps in the kernel, where no signal reaches it: a device or a file system holds it."""
    fields = stat_fields(pid)
    return fields is not None and int(fields[19]) == start_time and fields[0] == "D"


def child_pids() -> list[int]:
    """Return the children of this process, whichever thread has them."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return []
    if os.path.exists(f"/proc/self/task/{tasks[0]}/children"):
        return [int(pid) for task in tasks for pid in text_of(f"/proc/self/task/{task}/children").split()]
    return [pid for pid, fields in _all_processes() if int(fields[1]) == os.getpid()]  # an option of the kernel


def process_session(pid: int) -> int | None:
    """Return the session of a process, or None if it is gone or hidden; 0: one of another pid namespace."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[3])


def process_sessions() -> dict[int, int]:
    """Return the sessions of all processes that have not ended, by pid."""
    return {pid: int(fields[3]) for pid, fields in _all_processes() if fields[0] not in "ZXx" or int(fields[17]) > 1}


def boot_id() -> str:
    """Return what names this boot of the machine, or nothing where that cannot be told."""
    return text_of("/proc/sys/kernel/random/boot_id").strip()


def namespace(kind: str) -> int | None:
    """Return the number of the namespace that this process is in: ``pid``, ``net`` or ``time``; None if untold."""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return None


def control_groups(text: str) -> list[tuple[frozenset[str], str]]:
    """Return the controllers and the path of each group in ``/proc/PID/cgroup``. Version 2 names no controllers."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(frozenset(filter(None, controllers.split(","))), path) for _, controllers, path in lines]


def text_of(path: str) -> str:
    """Return the file's text, or nothing if it is gone, hidden or not mounted: the callers tell these apart."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _all_processes() -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        fields = stat_fields(int(name)) if name.isdecimal() else None
        if fields is not None:
            yield int(name), fields


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the third (the state) on: a name may hold blanks and parentheses."""
    text = text_of(f"/proc/{pid}/stat")
    fields = text[text.rfind(")") + 1 :].split()
    return fields if len(fields) >= 20 else None


def _exists(pid: int) -> bool:
    """Ask the kernel, which knows processes that a ``/proc`` mounted with hidepid, or not at all, does not show."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_frozen(pid: int) -> bool:
    """Return whether the process's control group is frozen (version 2 or 1), as ``docker pause`` does it."""
    for controllers, group in control_groups(text_of(f"/proc/{pid}/cgroup")):
        if "freezer" in controllers and "FROZEN" in text_of(f"/sys/fs/cgroup/freezer{group}/freezer.state"):
            return True
        if not controllers:  # version 2, mounted alone or beside version 1
            events = text_of(f"/sys/fs/cgroup{group}/cgroup.events") or text_of(
                f"/sys/fs/cgroup/unified{group}/cgroup.events"
            )
            if "frozen 1" in events:
                return True
    return False
