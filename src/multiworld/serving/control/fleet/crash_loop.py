"""Decide when the next replica of a stage is started while they keep dying young. Pure."""

from __future__ import annotations

from ....wire.backoff import BackOff

FIRST_S, MOST_S = 0.5, 30.0
CALM_S = 60.0


class CrashLoop:
    """The first death costs no delay, the next ones 0.5, 1, 2 … 30 seconds, until a minute has passed without any."""

    def __init__(self) -> None:
        self._back_off = BackOff(FIRST_S, MOST_S, num_free=1)
        self.not_before = 0.0
        self._last = float("-inf")

    def died_young(self, *, now: float) -> float:
        """Return the delay until the next start; 0 if there is none, or one is under way: others died with it."""
        if now < self.not_before:
            return 0.0
        if now - self._last > CALM_S + self._back_off.last_s:
            self._back_off.reset()
        self._last = now
        delay = self._back_off.next_s()
        self.not_before = max(self.not_before, now + delay)
        return delay

    @property
    def deaths(self) -> int:
        """In a row, those that came together counted once."""
        return self._back_off.num

    def allows(self, *, now: float) -> bool:
        return now >= self.not_before

    def forgive(self) -> None:
        """Somebody changed something: try again at once."""
        self.not_before = 0.0
        self._back_off.reset()
