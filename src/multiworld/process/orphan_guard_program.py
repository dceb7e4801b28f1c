"""The guard's process: it outlives its owner by a moment, and kills what the owner's processes have left behind.

Started as ``python -I -S orphan_guard_program.py OWNER_PID``. Standard input has one line for each process to guard,
its pid: a child of the owner that leads, or is about to lead, a session. When such a process has ended, the rest of its
session is killed. When the owner has ended, or writes ``end``, all of them are.

As long as anything is left of a session, the kernel gives its number to no other process.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress

if __name__ == "__main__":
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.join(package, "world/processes"))  # -I leaves it out, and the package is not loaded
    from procfs import process_session, process_sessions, process_start_time  # type: ignore[import-not-found]
else:
    from ..world.processes.procfs import process_session, process_sessions, process_start_time

END = "end"
CHUNK_BYTES = 65536
END_MS = 2000  # for killed processes to end, all in all
LOOK_MS = 20
AGAIN_MS = 500
RESERVE = 8  # descriptors for looking at processes, and for killing them


def kill_sessions(leaders: Iterable[int]) -> list[int]:
    """Kill what is left of the sessions of processes that have ended, and return what was killed."""
    wanted = set(leaders)
    killed: list[int] = []
    while found := [pid for pid in _left_of(wanted) if pid not in killed]:
        killed += [pid for pid in found if _kill(pid, wanted)]
        if not any(pid in killed for pid in found):
            break
    return killed


def _left_of(leaders: set[int]) -> list[int]:
    """Return the processes of these sessions. One whose leader runs is another one, which got the number since."""
    if not leaders:
        return []
    sessions = process_sessions()
    return [pid for pid, session in sessions.items() if session in leaders and sessions.get(session) != session]


def _kill(pid: int, leaders: set[int]) -> bool:
    """Kill it, unless that number is another process by now."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if process_session(pid) not in leaders:
            return False
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        return True
    finally:
        os.close(fd)


class Guard:
    """Watches the leaders, its owner and what that writes."""

    def __init__(self, owner_pidfd: int) -> None:
        self._owner_pidfd = owner_pidfd
        self._leaders: dict[int, int] = {}  # by pidfd: pid
        self._unwatched: dict[int, int | None] = {}  # by pid: its start time; there is no descriptor at the moment
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._end_fd = sys.maxsize if limit == resource.RLIM_INFINITY else limit - RESERVE
        self._text = b""
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._poll.register(owner_pidfd, select.POLLIN)

    def run(self) -> None:
        """Return when the owner is gone, and nothing is left of the sessions that can be killed."""
        while True:
            ready = [fd for fd, _ in self._poll.poll(AGAIN_MS if self._unwatched else None)]
            if 0 in ready and not self._read():
                break
            ended = [self._forget(fd) for fd in ready if fd in self._leaders]
            kill_sessions(ended)
            self._watch_rest()
            if self._owner_pidfd in ready:
                while self._read():  # whom it had started at last
                    pass
                break
        self._end_all()

    def _read(self) -> bool:
        """Take one piece of what the owner writes. Return whether there may be more."""
        try:
            content = os.read(0, CHUNK_BYTES)
        except BlockingIOError:  # the owner has ended, and another process holds its end of the pipe
            return False
        *lines, self._text = (self._text + content).split(b"\n")
        for line in lines:
            if line == END.encode():
                return False
            self._watch(int(line))
        return bool(content)

    def _watch(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            kill_sessions([pid])
            return
        except OSError:  # the host has no descriptors left
            self._unwatched[pid] = process_start_time(pid)
            return
        if pidfd >= self._end_fd:
            os.close(pidfd)
            self._unwatched[pid] = process_start_time(pid)
            return
        self._leaders[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    def _watch_rest(self) -> None:
        """Look after those for which there was no descriptor: it may be there now, or they may have ended."""
        unwatched, self._unwatched = self._unwatched, {}
        for pid, start_time in unwatched.items():
            if process_start_time(pid) == start_time:
                self._watch(pid)
            else:  # it has ended, and the number may be another's
                kill_sessions([pid])

    def _forget(self, pidfd: int) -> int:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        return self._leaders.pop(pidfd)

    def _end_all(self) -> None:
        """Kill the leaders, which the kernel has done unless they changed their user, and what they leave behind."""
        ending = select.poll()
        for pidfd in self._leaders:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            ending.register(pidfd, select.POLLIN)
        for _ in range(END_MS // LOOK_MS):
            ended = [pidfd for pidfd, _ in ending.poll(LOOK_MS)] if self._leaders else []
            for pidfd in ended:
                ending.unregister(pidfd)
            kill_sessions([self._forget(pidfd) for pidfd in ended])
            if not self._leaders:
                break
        kill_sessions(self._unwatched)  # of those that have ended


def main(owner: int) -> None:
    os.setpgid(0, 0)  # what ends the owner's process group must not end the one who cleans up after it
    try:
        pidfd = os.pidfd_open(owner)
    except ProcessLookupError:
        pidfd = None
    if pidfd is None or os.getppid() != owner:  # checked last: while it is our parent, its pid is no one else's
        return  # it could not tell us of anybody
    os.set_blocking(0, False)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one descriptor for each process to guard
    Guard(pidfd).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
