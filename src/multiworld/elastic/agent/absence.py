"""Decide whether this agent was away, stopped or without a turn, for so long that others may have gone on. Pure."""

from __future__ import annotations

LOOKS_PER_LEASE = 8


class Absence:
    """``looked`` is called every ``every_s`` at least; a longer gap is time in which this process did not run."""

    def __init__(self, *, lease_s: float, now: float) -> None:
        self.every_s = lease_s / LOOKS_PER_LEASE
        self._lease_s = lease_s
        self._looked_at = now

    def looked(self, now: float) -> float:
        """Return for how many seconds it was away just now; 0 for times that nobody minds."""
        gap_s, self._looked_at = now - self._looked_at, now
        return gap_s if gap_s > self._lease_s else 0.0
