"""What a host process does all the time: it waits for descriptors and timers, on the one thread that it has.

A process that forks others must have no other thread. To its handlers this looks like a ``ProgressThread``.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable

from ...wire.progress import IOHandler, Timer

__all__ = ["HostLoop"]

logger = logging.getLogger(__name__)


class HostLoop:
    """Runs until ``stop``. Handlers and timers that raise are logged; they end nothing but themselves."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, IOHandler] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []
        self._orders = itertools.count()
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            self._turn()

    def stop(self) -> None:
        self._stopping = True

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._calls.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + delay_s, next(self._orders), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def register(self, fd: int, events: int, handler: IOHandler) -> None:
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor; call it before closing that. Unknown ones are ignored."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Close all descriptors that are still registered. Also in a forked child, whose copies they are."""
        handlers, self._handlers = self._handlers, {}  # else one that unregisters, in a child, does so for the parent
        for handler in handlers.values():
            handler.close_descriptor()
        self._epoll.close()

    def _turn(self) -> None:
        ready = [(fd, self._handlers.get(fd), events) for fd, events in self._epoll.poll(self._wait_s())]
        for fd, handler, events in ready:
            if handler is not None and self._handlers.get(fd) is handler:  # else its number is another's by now
                self._handle(handler, events)
        for _ in range(len(self._calls)):
            self._call(self._calls.popleft())
        now = time.monotonic()
        while self._timers and self._timers[0].at <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                self._call(callback)

    def _wait_s(self) -> float:
        if self._calls:
            return 0.0
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].at - time.monotonic()) if self._timers else -1.0

    def _handle(self, handler: IOHandler, events: int) -> None:
        try:
            handler.on_ready(events)
        except Exception as error:
            logger.exception("%r failed; it is given up", handler)
            handler.on_failure(error)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("%r failed in the host process %d", callback, os.getpid())
