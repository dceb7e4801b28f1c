"""Decide what an agent may still claim after it was away or cut off: the others may have gone on without it. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class Standing:
    """One agent's, against the others of its job. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.is_fenced = False
        """Cut off from most others, it has ended its workers."""
        self.is_stale = False
        """It was away, so that the others may have gone on without it, and to the end."""
        self.dead: set[str] = set()
        """The agents that the search for a coordinator has found to be dead."""
        self.dead_before: frozenset[str] = frozenset()
        """Those of them that had died when it became stale."""
        self._stale_since = 0.0

    def restored(self) -> None:
        """It follows a coordinator, or is one."""
        self.is_fenced = self.is_stale = False
        self.dead = set()

    def fenced(self, dead: AbstractSet[str], now: float) -> None:
        self.is_fenced = True
        self.was_away(dead, now)

    def was_away(self, dead: AbstractSet[str], now: float) -> None:
        self._stale_since = now
        if not self.is_stale:
            self.is_stale, self.dead_before = True, frozenset(dead)

    def is_linked(self, now: float, lease_s: float) -> None:
        """It has links to the others: those that had given it up would have closed theirs before long."""
        if self.is_stale and now - self._stale_since > 2 * lease_s:
            self.is_stale = False
