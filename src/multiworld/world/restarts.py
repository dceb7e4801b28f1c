"""Decide how long a process that is to be kept running waits before it is started again. Pure."""

from __future__ import annotations

__all__ = ["Restarts"]

LIVED_WELL_S = 10.0
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0


class Restarts:
    """Of one member. One end is nothing; ends that follow each other quickly are a crash loop."""

    def __init__(self) -> None:
        self._num_quick = 0

    def ended(self, lived_s: float) -> float:
        """Return the seconds to wait: 0 at first, then 0.1, 0.2, … up to 5 while it lives for less than 10 s."""
        if lived_s >= LIVED_WELL_S:
            self._num_quick = 0
            return 0.0
        self._num_quick += 1
        if self._num_quick == 1:
            return 0.0
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._num_quick - 2, 10))
