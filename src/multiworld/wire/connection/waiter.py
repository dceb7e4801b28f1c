"""With what the calling thread waits for connections and for others that wake it: each thread has its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from ..progress.polling import Poller

logger = logging.getLogger(__name__)


class Waker:
    """Wakes its thread from a poll; its descriptor ends with the thread."""

    def __init__(self) -> None:
        self.fd = -1  # should there be none
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.get_ident()
        self._set = False

    def wake(self, _: object = None) -> None:
        if threading.get_ident() != self._thread:
            os.eventfd_write(self.fd, 1)
            self._set = True

    def clear(self) -> None:
        if self._set:
            self._set = False
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                return  # of two who woke it at once, one had said so already when both were read

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # a module has nothing left at the very end
        if self.fd >= 0:
            close(self.fd)


class _Waiter(threading.local):
    """A waiting thread's wake-up descriptor, and what it waited with last; made on first use."""

    def __init__(self) -> None:
        self._waker: Waker | None = None  # not here: this runs at import, too
        self._fds: list[int] = []  # not the connections: they would live as long as the thread
        self._poller: Poller | None = None
        self._has_warned = False

    @property
    def waker(self) -> Waker | None:
        """None: there is no descriptor for it, and the thread has to wait otherwise."""
        if self._waker is None:
            try:
                self._waker = Waker()
            except OSError as error:
                if not self._has_warned:
                    logger.warning("a thread that waits here cannot read itself, which makes it slower: %s", error)
                self._has_warned = True
        return self._waker

    def poller(self, waker: Waker, fds: list[int]) -> Poller:
        """Return what waits for any of these and for the waker."""
        poller = self._poller
        if poller is None or self._fds != fds:
            poller = Poller(waker.fd, *fds)
            self._fds, self._poller = fds, poller
        return poller

    def forget(self) -> None:
        """In a forked child: what wakes this thread there would wake the parent's, or take its wake-ups."""
        self._waker, self._poller, self._fds = None, None, []


waiter = _Waiter()
