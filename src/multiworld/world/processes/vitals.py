"""Look at other processes of this host through the operating system: does it run, is it stopped, has it ended."""

from __future__ import annotations

import hashlib
import os

from ..liveness import Vital
from .procfs import STOPPED, boot_id, namespace, process_start_time, process_state


def host_identity() -> bytes:
    """Return 16 bytes that are equal for processes which can observe each other by pid, with no network between them.

    They are made of the boot and three namespaces: pids, so that pids mean the same; the network, because a look at a
    process proves nothing about a peer whose packets must cross a network; time, in which start times are counted.
    Kernels before 5.6 have one time for all. Where ``/proc`` tells nothing, the bytes are random: nobody shares this
    host.
    """
    boot, numbers = boot_id(), {kind: namespace(kind) for kind in ("pid", "net", "time")}
    if not boot or numbers["pid"] is None or numbers["net"] is None:
        return os.urandom(16)
    known = "".join(f"{kind}:{number};" for kind, number in numbers.items() if number is not None)
    return hashlib.sha256(f"{boot}\n{known}".encode()).digest()[:16]


def shares_host(identity: bytes, pid: int, start_time: int) -> bool:
    """Return whether a peer that is connected now, hence alive, can be observed by its pid from here.

    Virtual machines restored from one snapshot have equal identities, so the process itself is looked for as well:
    otherwise the peer, being absent here, would be taken for dead.
    """
    return identity == host_identity() and observe_process(pid, start_time) in (Vital.RUNNING, Vital.STOPPED)


def observe_process(pid: int, start_time: int) -> Vital:
    """Look at the process that had this pid and start time (of ``process_start_time``)."""
    return Vital(process_state(pid, start_time))


def open_pidfd(pid: int, start_time: int | None = None) -> int | None:
    """Return a descriptor that polls readable once the process has ended, or None where there is no such thing.

    None also when the process is gone already or, given its start time, when the pid is another process's by now.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # gone, forbidden by a sandbox, or a kernel before 5.3
        return None
    if start_time is not None and process_start_time(pid) != start_time:  # the pid is bound since the line above
        os.close(descriptor)
        return None
    return descriptor


class StoppedTime:
    """For how long a running child was seen to be stopped: by a signal, a debugger or a frozen container."""

    def __init__(self, pid: int) -> None:
        self._pid, self._start_time = pid, process_start_time(pid) or 0
        self._since: float | None = None

    def look(self, now: float) -> float:
        """Return the seconds since the first of the looks that found it stopped, without one that did not; else 0."""
        if process_state(self._pid, self._start_time) != STOPPED:
            self._since = None
            return 0.0
        self._since = now if self._since is None else self._since
        return now - self._since

    def forget(self) -> None:
        """Count from the next look: this process did not run, and both may have been stopped together."""
        self._since = None
