"""Log what may happen thousands of times a second, at most once in a while, with how often it has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

LOG_PERIOD_S: Final = 60.0


class RateLimitedLog:
    """One kind of news of one source; ``log`` is a logger's method. One thread at a time."""

    def __init__(self, log: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._next_at = -math.inf
        self._num_untold = 0

    def __call__(self, text: str, *args: object) -> None:
        now = self._clock()
        if now < self._next_at:
            self._num_untold += 1
            return
        self._next_at = now + LOG_PERIOD_S
        if self._num_untold:
            text += f" (and {self._num_untold} times more since this was said last)"
        self._num_untold = 0
        self._log(text, *args)
