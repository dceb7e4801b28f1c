"""The last latencies of something, and how long one may take before something may have happened to it. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

PATIENCE_FACTOR: Final = 4.0
LEAST_PATIENCE_S: Final = 0.25


class Latencies:
    """The last ``count`` latencies, in seconds."""

    def __init__(self, count: int) -> None:
        self._last: deque[float] = deque(maxlen=count)
        self.sum_s = 0.0
        """Of all there ever were."""

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self.sum_s += seconds

    def quantile(self, share: float) -> float:
        """Return 0 while there are none."""
        ordered = sorted(self._last)
        return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0

    @property
    def patience_s(self) -> float:
        """How long one may take that nothing has happened to."""
        return max(PATIENCE_FACTOR * self.quantile(0.99), LEAST_PATIENCE_S)
