"""Look whether descriptors are readable, again and again, without going to sleep."""

from __future__ import annotations

import select
import time


def poller_of(*fds: int) -> select.poll:
    """Return what says which of these are readable, or closed at the other end."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN | select.POLLRDHUP)
    return poller


def look(poller: select.poll, until: float) -> list[tuple[int, int]]:
    """Return what is ready as soon as something is; nothing when ``time.perf_counter()`` has come to ``until``."""
    ready: list[tuple[int, int]] = []
    while not ready and time.perf_counter() < until:
        ready = poller.poll(0)
    return ready
