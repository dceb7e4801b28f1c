"""Who gives way when there are as many connections as there may be: who has kept the gateway waiting the longest."""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection
from typing import Any, Protocol

GRACE_S = 1.0
"""For this long every connection may wait undisturbed: else many clients that come at once drive each other out."""
LOOKED_FOR = 16  # looking at a thousand connections takes as long as accepting some ten

Wait = tuple[bool, float]
"""Whether it is amid a request or an answer, and since when; those between requests go first."""


class Waiting(Protocol):
    """A connection."""

    def waits(self) -> Wait | None:
        """Since when it waits for its client; None: it does not, the client waits for us."""

    def give_way(self, silent_s: float) -> bool:
        """End it; False if its client has just sent something."""


class Room:
    """Makes room among ``connections``, which others change."""

    def __init__(self, connections: Collection[Any]) -> None:
        self._connections = connections
        self._idlest: list[tuple[Wait, int, Waiting]] = []  # the next to go first; they may have been served since

    def make(self, newcomer: object = None) -> bool:
        """End one connection other than the newcomer, if one has waited for long enough."""
        for _ in range(2):
            while self._idlest:
                wait, _, connection = self._idlest.pop(0)
                if connection.waits() == wait and connection.give_way(time.monotonic() - wait[1]):
                    return True
            self._look(newcomer)
        return False

    def _look(self, newcomer: object) -> None:
        latest = time.monotonic() - GRACE_S
        waiting = (
            (wait, id(each), each)
            for each in self._connections
            if each is not newcomer and (wait := each.waits()) is not None and wait[1] <= latest
        )
        longest = heapq.nsmallest(LOOKED_FOR, waiting)
        between = [each for each in longest if not each[0][0]]
        self._idlest = between or longest[:1]  # before a second that is amid a request goes, others may be idle
