"""How far a node may be behind its master: by commands, and by the bytes of tensors that are on their way to it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from .origins import here
from .waits import Wait

MAX_UNCONFIRMED: Final = 64 * 1024
"""Commands that a node may be behind before the master waits for it."""
MAX_UNCONFIRMED_BYTES: Final = 256 * 1024 * 1024
"""As above, of batches of commands with tensors in them, and of tensors that are being sent beside them."""

FULL: Final = "a full queue"
"""What a profile shows for such a wait."""


class Room:
    """``num_waits``: how often the master waited. Any thread."""

    def __init__(self) -> None:
        self.num_waits = 0
        self._changed = threading.Condition()  # guards the lines below
        self._unconfirmed: deque[tuple[int, int]] = deque()  # the position behind a batch, its bytes
        self._held_bytes = 0

    def hold(self, num_bytes: int) -> None:
        """Count the bytes of a tensor until ``release``."""
        with self._changed:
            self._held_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        with self._changed:
            self._held_bytes -= num_bytes
            self._changed.notify_all()

    def hold_until(self, position: int, num_bytes: int) -> None:
        """Count the bytes of a batch until all records before ``position`` are executed."""
        with self._changed:
            self._unconfirmed.append((position, num_bytes))
            self._held_bytes += num_bytes

    def confirm(self, position: int) -> None:
        """All records before ``position`` are executed."""
        with self._changed:
            while self._unconfirmed and self._unconfirmed[0][0] <= position:
                self._held_bytes -= self._unconfirmed.popleft()[1]
            self._changed.notify_all()

    def is_behind(self, num_unconfirmed: int) -> bool:
        return num_unconfirmed > MAX_UNCONFIRMED or self._held_bytes > MAX_UNCONFIRMED_BYTES

    def wait(self, is_behind: Callable[[], bool]) -> None:
        """Wait while that is so. The node's news, and its end, look again (``look_again``)."""
        self.num_waits += 1
        with Wait(FULL, here()):
            self.wait_while(is_behind)

    def wait_while(self, goes_on: Callable[[], bool]) -> None:
        """As ``wait``, for one that is no wait of the program's."""
        with self._changed:
            while goes_on():
                self._changed.wait()

    def look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()
