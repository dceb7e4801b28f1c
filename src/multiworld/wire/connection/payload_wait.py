"""Look again for a moment when the rest of a large payload has not come yet.

A reader that is a little faster than the sender would go to sleep for each part, and be woken by the sender's
processor, which has better things to do: on loopback a tenth of the throughput. Where the network is the slower one,
looking is in vain, and a row of that ends it for a while.
"""

from __future__ import annotations

from typing import Final

from ..progress.polling import Poller
from ..progress.spinning import MAX_MISSES, REST, SPIN_S

LARGE_BYTES: Final = 512 * 1024  # a rest above this


class PayloadWait:
    """How one socket's payloads come. Used with the read side held."""

    def __init__(self, fd: int, others: int) -> None:
        """``others``: a descriptor that is readable when the progress thread has something to read, from anybody."""
        self._fd, self._others = fd, others
        self._misses = self._rest = 0
        self._poller: Poller | None = None

    def more_comes(self, rest_bytes: int) -> bool:
        """Nothing more is here of a payload that lacks so many bytes. Whether more comes in a moment, before others."""
        if rest_bytes < LARGE_BYTES:
            return False
        if self._rest:
            self._rest -= 1
            return False
        ready = self._look()
        if ready:
            self._misses = 0
            return any(fd == self._fd for fd, _ in ready)
        self._misses += 1
        if self._misses == MAX_MISSES:
            self._misses, self._rest = 0, REST
        return False

    def _look(self) -> list[tuple[int, int]]:
        if self._poller is None:
            self._poller = Poller(self._fd, self._others)
        return self._poller.look(SPIN_S)
