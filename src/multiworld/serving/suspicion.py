"""Which replicas of a stage answer no more while others do, and how much of their work may be tried elsewhere. Pure.

A replica whose oldest item is far older than usual, while others make progress, is *suspect* until it answers. Whoever
was slow once and is idle is forgiven with time: else it would never be seen to be quick again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from .holder import Holder

__all__ = ["Suspicion"]

NUM_LATENCIES: Final = 256
SUSPECT_AFTER_S: Final = 0.25
SUSPECT_FACTOR: Final = 4.0
FORGIVE_HALF_S: Final = 0.5  # in which half of an idle replica's bad name goes
REPLAY_SHARE: Final = 0.2
REPLAY_ALLOWANCE: Final = 16
BUDGET_HALF_AT: Final = 4096


class Suspicion:
    """Of one sender, about the replicas of one stage."""

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=NUM_LATENCIES)
        self._num_sent = self._num_replayed = 0.0
        self._checked_at = 0.0

    def sent(self) -> None:
        """An item went to a replica; each adds to what may be replayed."""
        self._num_sent += 1
        if self._num_sent > BUDGET_HALF_AT:
            self._num_sent /= 2
            self._num_replayed /= 2

    def answered(self, holder: Holder, latency_s: float) -> None:
        """A replica was done with an item so long after it was sent."""
        if not holder.suspect:  # else the next stall would be noticed later
            self._latencies.append(latency_s)

    def check(self, holders: Collection[Holder], *, now: float) -> float:
        """Mark who is suspect from now on. Return what a suspect may be relieved of: what was sent before then."""
        self._forgive_idle(holders, now)
        since = now - max(SUSPECT_FACTOR * self._p99(), SUSPECT_AFTER_S)
        for holder in holders:
            if holder.oldest_at >= since:
                holder.suspect = False
            elif not holder.suspect:
                holder.suspect = any(
                    other is not holder and not other.closed and not other.suspect and other.progress_at > since
                    for other in holders
                )
        return since

    def may_replay(self) -> bool:
        """Take one replay from the budget; False: there is none left."""
        if self._num_replayed >= REPLAY_SHARE * self._num_sent + REPLAY_ALLOWANCE:
            return False
        self._num_replayed += 1
        return True

    def _forgive_idle(self, holders: Collection[Holder], now: float) -> None:
        idle_s, self._checked_at = now - self._checked_at, now
        best_s = min((holder.latency_s for holder in holders), default=0.0)
        kept = 0.5 ** (max(idle_s, 0.0) / FORGIVE_HALF_S)
        for holder in holders:
            if not holder.held:
                holder.latency_s = best_s + (holder.latency_s - best_s) * kept

    def _p99(self) -> float:
        if not self._latencies:
            return 0.0
        ordered = sorted(self._latencies)
        return ordered[int(0.99 * (len(ordered) - 1))]
