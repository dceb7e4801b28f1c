"""Decides which replicas of a stage are suspect: they do not answer while others do. Pure.

A replica whose oldest item is far older than usual, while others make progress, is *suspect* until it answers. An idle
replica that was slow is forgiven with time: it gets no items that could show that it is quick again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .holder import Holder
from .latencies import Latencies

NUM_LATENCIES: Final = 256
FORGIVE_HALF_S: Final = 0.5  # in this time, half of an idle replica's excess latency is forgiven


class Suspicion:
    """One sender's suspicion of the replicas of one stage."""

    def __init__(self) -> None:
        self._latencies = Latencies(NUM_LATENCIES)
        self._checked_at = 0.0

    def answered(self, holder: Holder, latency_s: float) -> None:
        """A replica was done with an item ``latency_s`` after it was sent."""
        if not holder.suspect:  # else the next stall would be noticed later
            self._latencies.add(latency_s)

    def check(self, holders: Collection[Holder], *, now: float) -> float:
        """Mark the suspects. Return a time: what was sent to a suspect before it may be tried elsewhere."""
        self._forgive_idle(holders, now)
        since = now - self._latencies.patience_s
        for holder in holders:
            if holder.oldest_at >= since:
                holder.suspect = False
            elif not holder.suspect:
                holder.suspect = any(
                    other is not holder and not other.closed and not other.suspect and other.progress_at > since
                    for other in holders
                )
        return since

    def _forgive_idle(self, holders: Collection[Holder], now: float) -> None:
        idle_s, self._checked_at = now - self._checked_at, now
        best_s = min((holder.latency_s for holder in holders), default=0.0)
        kept = 0.5 ** (max(idle_s, 0.0) / FORGIVE_HALF_S)
        for holder in holders:
            if not holder.held:
                holder.latency_s = best_s + (holder.latency_s - best_s) * kept
