"""Decide how long to wait before something is tried, looked at or said again: twice as long each time. Pure.

It stands in the lowest layer that has a loop, not in ``process``: channels and worlds wait so, too.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_DOUBLINGS = 60  # more than any bound takes; a float has room for them


class BackOff:
    """Waits of ``first_s``, twice that, four times that, up to ``longest_s``; ``num_free`` waits of 0 s come before.

    ``random`` returns numbers from 0 to 1. Given that, each wait is cut by up to a half ("equal jitter"): where many
    try to reach one place, they do not come at the same moment again and again.
    """

    def __init__(
        self, first_s: float, longest_s: float, *, num_free: int = 0, random: Callable[[], float] | None = None
    ) -> None:
        if not 0 < first_s <= longest_s:
            raise ValueError(f"expected 0 < first_s <= longest_s, got {first_s} and {longest_s}")
        self._first_s, self._longest_s, self._num_free, self._random = first_s, longest_s, num_free, random
        self.num = 0
        """How many waits there were since the start, or since ``reset``."""

    @property
    def last_s(self) -> float:
        """The wait before the coming one, uncut; 0 at first."""
        return self._wait_s(self.num)

    @property
    def coming_s(self) -> float:
        """What ``next_s`` returns at most."""
        return self._wait_s(self.num + 1)

    def next_s(self) -> float:
        """Return the next wait, and count it."""
        self.num += 1
        wait_s = self._wait_s(self.num)
        return wait_s if self._random is None else wait_s * (1.0 - self._random() / 2)

    def reset(self) -> None:
        """It went well: begin with the first wait again."""
        self.num = 0

    def _wait_s(self, num: int) -> float:
        if num <= self._num_free:
            return 0.0
        return min(self._longest_s, self._first_s * 2.0 ** min(num - self._num_free - 1, MAX_DOUBLINGS))
