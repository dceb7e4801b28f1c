"""A process with a guard: its children lead sessions, and have started what would be left behind. Lines tell of it.

``child: LEADER SAME GROUP SESSION``: a child, and what it has started: in its group, in a group of its own, and in a
session of its own, which means to go on. ``guard: PID`` of each guard.
"""

from __future__ import annotations

import os
import signal
import time

from multiworld.process.orphan_guard import OrphanGuard
from multiworld.process.spawn.forking import WAITED_FOR
from multiworld.wire.progress.thread import ProgressThread

NUM_CHILDREN = 2


def _fork_idle(*, group: bool = False, session: bool = False) -> int:
    pid = os.fork()
    if pid == 0:
        if group:
            os.setpgid(0, 0)
        if session:
            os.setsid()
        signal.pause()
    return pid


def _fork_leader() -> None:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        pids = [os.getpid(), _fork_idle(), _fork_idle(group=True), _fork_idle(session=True)]
        os.write(write_fd, f"child: {' '.join(map(str, pids))}\n".encode())
        signal.pause()
    WAITED_FOR.add(pid)
    os.close(write_fd)
    with open(read_fd) as pipe:
        print(pipe.readline(), end="", flush=True)


def main() -> None:
    for _ in range(NUM_CHILDREN):
        _fork_leader()
    guard = OrphanGuard(ProgressThread("owner"))
    guard.begin()
    for pid in sorted(WAITED_FOR - {guard.pid}):
        guard.watch(pid)
    told = None
    while True:
        if guard.pid != told and guard.pid is not None:
            told = guard.pid
            print(f"guard: {told}", flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
