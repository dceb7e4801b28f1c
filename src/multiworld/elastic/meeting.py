"""Decide how long an agent bears with what it meets while it looks for the others, and when it says so. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection
from math import inf

__all__ = ["Call", "Reminder", "Strangers"]

STRANGE_S = 2.0  # an agent that is just ending may close a connection without a word
SILENT_S = 10.0  # an agent that is stopped, or very busy, may be silent for a while
FIRST_S, LONGEST_S = 5.0, 300.0


class Call(enum.Enum):
    """What came of calling an agent."""

    FOLLOWED = "followed"
    DEAD = "dead"  # its machine answers, and it is not there
    STRANGE = "strange"  # somebody is there, and does not speak as an agent
    SILENT = "silent"  # somebody is there, and says nothing
    UNKNOWN = "unknown"


class Strangers:
    """Whether something that is no agent listens where the agents are to meet."""

    def __init__(self, *, is_ours: bool) -> None:
        """``is_ours``: no other agent than this one is to listen there."""
        self._is_ours = is_ours
        self._strange_since = self._silent_since = inf

    def met(self, calls: Collection[Call], now: float) -> None:
        """Take what has come of calling there once more."""
        is_odd = not {Call.STRANGE, Call.SILENT}.isdisjoint(calls)
        self._strange_since = min(self._strange_since, now) if Call.STRANGE in calls else inf
        self._silent_since = min(self._silent_since, now) if is_odd else inf

    def why_hopeless(self, now: float) -> str | None:
        """Return what it does, in a clause, once it is certain that it is no agent."""
        if now - self._strange_since >= STRANGE_S:
            return "it does not answer as one"
        if now - self._silent_since >= (STRANGE_S if self._is_ours else SILENT_S):
            return "it takes connections, and says nothing"
        return None


class Reminder:
    """When to say again that something is still waited for: after 5 s, then after gaps that grow."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._due, self._gap = inf, FIRST_S

    def look(self, now: float, *, is_waiting: bool) -> float | None:
        """Return for how long it has been waited for, if that is to be said now."""
        if not is_waiting:
            self._since = None
            return None
        if self._since is None:
            self._since, self._due, self._gap = now, now + FIRST_S, 2 * FIRST_S
        if now < self._due:
            return None
        self._due, self._gap = now + self._gap, min(2 * self._gap, LONGEST_S)
        return now - self._since
