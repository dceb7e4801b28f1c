"""Remembers which requests a replica is done with, so that what comes late of them is not begun again. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

NUM_REMEMBERED: Final = 8192
EVERY_ATTEMPT: Final = 1 << 16


class Finished:
    """The last requests that ended here, each with the attempt that did."""

    def __init__(self, num_remembered: int = NUM_REMEMBERED) -> None:
        self._num_remembered = num_remembered
        self._attempts: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, id_: bytes, attempt: int) -> None:
        """It ended; a later attempt of its gateway is executed all the same."""
        self._attempts[id_] = max(attempt, self._attempts.pop(id_, 0))
        if len(self._attempts) > self._num_remembered:
            self._attempts.popitem(last=False)

    def cancel(self, id_: bytes) -> None:
        """Nobody wants it, whatever comes."""
        self.add(id_, EVERY_ATTEMPT)

    def covers(self, id_: bytes, attempt: int) -> bool:
        """Return whether this attempt has ended."""
        return attempt <= self._attempts.get(id_, 0)
