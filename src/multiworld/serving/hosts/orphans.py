"""Ends what members had started themselves, once a killed host process has taken the members along.

Each member leads a session. The kernel ends members with their host process, but not what they started.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["end_orphans", "parse_session", "process_space"]

LEADER_S = 2.0  # for a member to be ended by the kernel
MS = 1e3


def end_orphans(host: int, members: Iterable[int], timeout_s: float = LEADER_S) -> list[int]:
    """Kill what is left of the sessions of a host process's members, if all these have ended; return what was killed.

    Blocks for up to ``timeout_s`` for each that has not ended, and then leaves its session alone; all of them, if the
    host process lives. As long as anything is left of a session, the kernel gives its number to no other process: what
    is killed was the member's.
    """
    if not _has_ended(host, timeout_s):
        return []
    ended = {pid for pid in members if _has_ended(pid, timeout_s)}
    killed: list[int] = []
    while found := [pid for pid in _sessions(ended) if pid not in killed]:
        killed += [pid for pid in found if _kill(pid, ended)]
        if not any(pid in killed for pid in found):
            break
    return killed


def process_space() -> str:
    """Return what is the same wherever numbers of processes mean the same ones; empty if that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def parse_session(stat: str) -> int:
    """Return the session that ``/proc/…/stat`` tells of. The name of the program may contain anything."""
    return int(stat.rpartition(")")[2].split()[3])


def _has_ended(pid: int, timeout_s: float) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # no descriptor is left, say: then it is not known
        return False
    try:
        ending = select.poll()  # and not select, which takes no descriptors from 1024
        ending.register(fd, select.POLLIN)
        return bool(ending.poll(timeout_s * MS))
    finally:
        os.close(fd)


def _sessions(leaders: set[int]) -> list[int]:
    """Return the processes of these sessions."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()] if leaders else []
    return [pid for pid in numbers if pid not in leaders and _session_of(pid) in leaders]


def _kill(pid: int, leaders: set[int]) -> bool:
    """Kill it, unless that number is another process by now."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if _session_of(pid) not in leaders:
            return False
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        return True
    finally:
        os.close(fd)


def _session_of(pid: int) -> int:
    try:
        return parse_session(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):  # it has just ended
        return -1
