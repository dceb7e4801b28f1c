"""Ends what members had started themselves, once a killed host process has taken the members along.

Each member leads a session. The kernel ends members with their host process, but not what they started. The host
process's own guard does, unless it was killed too.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable

from ...process.orphan_guard_program import kill_sessions

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
    return kill_sessions({pid for pid in members if _has_ended(pid, timeout_s)})


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
