"""Let an asyncio loop read busy connections itself: it saves two thread switches per message.

While messages come in quick succession (*hot*), the loop that awaits them reads the connection. The progress thread
looks after it every ``PATROL_S``: it reads what a busy loop has left lying, and takes the connection back once it is no
longer hot. It also gets it back as soon as a large payload begins.
"""

from __future__ import annotations

import asyncio
import logging
import select
import threading
from contextlib import suppress
from typing import Protocol

__all__ = ["HOT_S", "KEPT_PATROL_S", "KEPT_S", "PATROL_S", "LoopReader", "LoopWatched"]

logger = logging.getLogger(__name__)

HOT_S = 0.005
PATROL_S = 0.001
KEPT_S, KEPT_PATROL_S = 1.0, 0.02  # where nobody but the loop listens, and that always


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
        for fd, _ in self._epoll.poll(0):
            connection = self._watched.get(fd)
            if connection is not None:
                try:
                    connection.read_for_loop()
                except Exception as error:  # as on the progress thread: one connection's defect is its own
                    logger.exception("connection handler %r failed; it is closed", connection)
                    connection.on_failure(error)
