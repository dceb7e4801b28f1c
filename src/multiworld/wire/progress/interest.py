"""What the progress thread waits for on one descriptor: its event mask, of which several parties own a part."""

from __future__ import annotations

import select
import threading
from typing import Final

from .thread import ProgressThread

READ_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP


class Interest:
    """Change ``reading`` and ``writing`` with ``lock`` held, then call ``update``."""

    def __init__(self, loop: ProgressThread, fd: int, *, reading: int, writing: bool) -> None:
        self.lock = threading.Lock()
        self.reading, self.writing = reading, writing
        self.over = False  # the descriptor is being given up
        self._loop, self._fd = loop, fd

    def update(self) -> None:
        """With the lock held."""
        if not self.over:
            self._loop.modify(self._fd, self.reading | (select.EPOLLOUT if self.writing else 0))

    def set_reading(self, events: int) -> None:
        with self.lock:
            self.reading = events
            self.update()

    def set_writing(self, writing: bool) -> None:
        with self.lock:
            self.writing = writing
            self.update()
