"""How a process learns that a child it forked has come so far that it cannot outlive its parent."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable

from ...world.kept_process import Loop

__all__ = ["ChildStart"]

logger = logging.getLogger(__name__)


class ChildStart:
    """A pipe whose other end the child closes when the kernel has been told to end it with this process.

    One that is stopped before that would outlive us, and hold our connections open.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop, self._on_up = loop, _nothing
        self._read_fd, self._write_fd = os.pipe()

    def announce(self) -> None:
        """In the child."""
        os.close(self._read_fd)
        os.close(self._write_fd)

    def forked(self, on_up: Callable[[], None]) -> None:
        self._on_up = on_up
        os.close(self._write_fd)
        self._loop.register(self._read_fd, select.EPOLLIN, self)

    def give_up(self) -> None:
        """There is no child."""
        self.announce()

    def finish(self) -> None:
        """Idempotent."""
        if self._read_fd >= 0:
            self._loop.unregister(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1
            self._on_up()

    def on_ready(self, events: int) -> None:
        self.finish()

    def on_failure(self, error: BaseException) -> None:
        logger.error("the start of a child was not dealt with: %s", error)

    def close_descriptor(self) -> None:
        os.close(self._read_fd)


def _nothing() -> None: ...
