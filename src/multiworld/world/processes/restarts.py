"""Decide how long a process that is to be kept running waits before it is started again. Pure."""

from __future__ import annotations

from ...wire.backoff import BackOff

LIVED_WELL_S = 10.0
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0


class Restarts:
    """Of one member. One end is nothing; ends that follow each other quickly are a crash loop."""

    def __init__(self) -> None:
        self._back_off = BackOff(FIRST_DELAY_S, LONGEST_DELAY_S, num_free=1)

    def ended(self, lived_s: float) -> float:
        """Return the seconds to wait: 0 at first, then 0.1, 0.2, … up to 5 while it lives for less than 10 s."""
        if lived_s >= LIVED_WELL_S:
            self._back_off.reset()
            return 0.0
        return self._back_off.next_s()

    def not_started(self) -> float:
        """Return the seconds to wait after it could not be started: never 0, as what was short is short still."""
        return max(FIRST_DELAY_S, self._back_off.next_s())
