"""Let an asyncio loop read busy connections itself: it saves two thread switches per message.

While messages come in quick succession (*hot*), the loop that awaits them reads the connection. The progress thread
looks after it every ``PATROL_S``: it reads what a busy loop has left lying, and takes the connection back once it is no
longer hot. It also gets it back as soon as a large payload begins.

A loop that always listens (``World.deliver``) also looks for a moment before it sleeps, while that pays: a process that
is woken finds nothing any more where it left it, neither in the caches nor, on a virtual machine, its processor.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from .processors import usable_processors
from .spinning import QuickWaits

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

HOT_S = 0.005
PATROL_S = 0.001
MAX_PATROL_S = 0.002  # a thread that reads itself has left nothing lying for a while
KEPT_S, KEPT_PATROL_S = 1.0, 0.02  # where nobody but the loop listens, and that always
LINGER_S = 400e-6  # two other processes may have their turns meanwhile
QUICK_S = 800e-6  # with the wake-ups of all three
MAX_READY = 32  # connections told of at once: whatever the number, memory is taken for as many
ROUND_S = 2e-3  # a loop that is kept busy by messages goes round as often, for all else
VARIABLE = "MULTIWORLD_LINGER"


class LoopWatched(Protocol):
    """A connection that a loop may read."""

    def read_for_loop(self) -> None: ...

    def on_failure(self, error: BaseException) -> None: ...


class LoopReader:
    """One epoll descriptor, registered with one asyncio loop, that holds the connections which the loop reads.

    Connections come and go from any thread without touching the loop's own selector.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self._epoll = select.epoll()
        self._watched: dict[int, LoopWatched] = {}
        self.look_from = 0.0
        """When a task that waits may look for what has come again, beside the loop itself."""
        self.lingers = False
        """Whether somebody always listens to what came last, so that it looks for a moment before the loop sleeps."""
        self._ready = getattr(loop, "_ready", None)
        """What the loop is to call next, if it is asyncio's own: with any of that it does not linger."""
        self._may_linger = self._ready is not None and _may_linger()
        self._quick_waits = QuickWaits(LINGER_S, QUICK_S)
        self._rested_at = 0.0
        self._is_looking = False
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def watch(self, fd: int, connection: LoopWatched) -> None:
        self._watched[fd] = connection
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)

    def unwatch(self, fd: int) -> None:
        if fd in self._watched and not self._epoll.closed:
            with suppress(FileNotFoundError):  # an interrupt came in between, here or in ``watch``
                self._epoll.unregister(fd)
        self._watched.pop(fd, None)

    def close(self) -> None:
        """Any thread. The loop forgets the descriptor in its own time, or has done so by closing."""
        try:
            self.loop.call_soon_threadsafe(self._close)
        except RuntimeError:
            self._epoll.close()

    def _close(self) -> None:
        if not self._epoll.closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _on_ready(self) -> None:
        came_at = time.perf_counter() if self._may_linger else 0.0
        self._read()
        if not self.lingers or not self._may_linger:
            return
        self._quick_waits.waited(came_at - self._rested_at)
        self._rested_at = time.perf_counter()
        if not self._quick_waits.pay:
            return
        if not self._ready:
            self._linger()
        else:
            self._look_soon()  # after those who have heard of something

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_looking = False
        self._linger()

    def _linger(self) -> None:
        """Look for what comes, as long as the loop has nothing to call.

        Of its timers, and of what else it listens to, it learns only when it goes round: that is not put off for long.
        """
        began = time.perf_counter()
        until = began + LINGER_S
        has_come = False
        while not self._ready and not self._epoll.closed:
            if self._read():
                has_come = True
                now = time.perf_counter()
                self._quick_waits.waited(0.0)
                self._rested_at, until = now, now + LINGER_S
                if now > began + ROUND_S:
                    break
            elif time.perf_counter() > until:
                return
            else:
                os.sched_yield()  # to whoever may be about to send something
        if has_come and not self._epoll.closed:
            self._look_soon()  # after those who have heard of it

    def _read(self) -> bool:
        """Read what has come; return whether something had."""
        ready = self._epoll.poll(0, MAX_READY)
        for fd, _ in ready:
            connection = self._watched.get(fd)
            if connection is not None:
                try:
                    connection.read_for_loop()
                except Exception as error:  # as on the progress thread: one connection's defect is its own
                    logger.exception("connection handler %r failed; it is closed", connection)
                    connection.on_failure(error)
        return bool(ready)


def _may_linger() -> bool:
    """Not where less than two processors may be used, or where the environment says so."""
    return os.environ.get(VARIABLE) != "0" and usable_processors() >= 2
