"""Decide how long an agent bears with what it meets while it looks for the others, and when it says so. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection
from math import inf

from ...wire.backoff import BackOff

STRANGE_S = 2.0  # an agent that is just ending may close a connection without a word
SILENT_S = 10.0  # an agent that is stopped, or very busy, may be silent for a while
FIRST_S, LONGEST_S = 5.0, 300.0


class Call(enum.Enum):
    """What came of calling an agent."""

    FOLLOWED = "followed"
    DEAD = "dead"  # its machine answers, and it is not there
    STRANGE = "strange"  # somebody is there, and speaks another protocol
    CLOSED = "closed"  # somebody took the connection, and closed it without a word
    SILENT = "silent"  # somebody is there, and says nothing
    UNKNOWN = "unknown"


class Place(enum.Enum):
    """Whose the address was that was called."""

    OURS = "ours"  # no other agent is to listen there
    HERE = "here"  # this host's, and taken already when we wanted to listen there
    ELSEWHERE = "elsewhere"  # an agent may still come: a proxy in front of it takes and closes connections until then


CLOSES, IS_SILENT = "takes connections{} and closes them", "takes connections{} and says nothing"


class Strangers:
    """Whether something that is no agent listens where the agents are to meet."""

    def __init__(self) -> None:
        self._strange = self._closing = self._silent = self._silent_at_ours = inf  # since when
        self._last: set[Call] = set()

    def met(self, calls: Collection[tuple[Call, Place]], now: float) -> None:
        """Take what has come of calling there once more."""
        self._last = {call for call, _ in calls}
        near = {call for call, place in calls if place is not Place.ELSEWHERE}
        at_ours = {call for call, place in calls if place is Place.OURS}
        self._strange = min(self._strange, now) if Call.STRANGE in self._last else inf
        self._closing = min(self._closing, now) if near & {Call.STRANGE, Call.CLOSED} else inf
        odd = {Call.STRANGE, Call.CLOSED, Call.SILENT}
        self._silent = min(self._silent, now) if near & odd else inf
        self._silent_at_ours = min(self._silent_at_ours, now) if at_ours & odd else inf

    def why_hopeless(self, now: float) -> str | None:
        """Return what it does, in a clause, once it is certain that it is no agent and that none will come."""
        if now - self._strange >= STRANGE_S:
            return "it does not answer as one"
        if now - self._closing >= STRANGE_S:
            return "it " + CLOSES.format(",")
        if now - self._silent >= SILENT_S or now - self._silent_at_ours >= STRANGE_S:
            return "it " + IS_SILENT.format(",")
        return None

    @property
    def what_is_there(self) -> str | None:
        """What was met last where an agent may still come, in a clause."""
        if Call.CLOSED in self._last:
            return "something " + CLOSES.format(" there")
        if Call.SILENT in self._last:
            return "something " + IS_SILENT.format(" there")
        return None


class Reminder:
    """When to say again that something is still waited for: after 5 s, then after gaps that grow."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._due, self._gaps = inf, BackOff(FIRST_S, LONGEST_S)

    def look(self, now: float, *, is_waiting: bool) -> float | None:
        """Return for how long it has been waited for, if that is to be said now."""
        if not is_waiting:
            self._since = None
            return None
        if self._since is None:
            self._gaps.reset()
            self._since, self._due = now, now + self._gaps.next_s()
        if now < self._due:
            return None
        self._due = now + self._gaps.next_s()
        return now - self._since
