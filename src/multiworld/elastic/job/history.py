"""What has happened in a job, numbered from its beginning, as far as one agent knows. Pure.

A coordinator numbers its events onwards from those of the one before. Two that were cut off from each other may have
given a number twice: then the event of the later term counts, and the other one is forgotten.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from ...wire.messages import REST, Json, to_json

MAX_EVENTS = 10_000
MAX_BYTES = 8 * 1024 * 1024  # as JSON, so that all of them fit into one note
AT_ONCE = 50  # events in an answer
UNSEEN = 10_000  # more than a coordinator can have recorded since it last said how many there are


@dataclass(frozen=True, kw_only=True)
class Event:
    """``at``: seconds since the epoch. ``fields``: what events of its kind say besides; in JSON, among the others."""

    number: int
    at: float
    kind: str
    text: str
    generation: int
    term: int
    fields: Mapping[str, Json] = field(default_factory=dict, metadata=REST)


Segment = tuple[int, int, int]
"""A term, and the first and the last number of events in a row that are of that term."""


class History:
    """The last events of a job, in order. It may lack some that happened between those that it has."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_events, self._max_bytes = max_events, max_bytes
        self._events: dict[int, Event] = {}
        self._numbers: list[int] = []  # of those, ascending
        self._sizes: dict[int, int] = {}
        self._num_bytes = 0
        self.counts: Counter[str] = Counter()
        """How many of each kind there were, also those that are not kept any more."""
        self.floor = 0
        """The last number that is not kept any more, as there are too many after it."""

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def last(self) -> int:
        """The number of the last event; 0 if none is known."""
        return self._numbers[-1] if self._numbers else self.floor

    def since(self, number: int) -> list[Event]:
        """Return those with higher numbers."""
        return [self._events[each] for each in self._numbers[bisect_right(self._numbers, number) :]]

    def latest(self, num_events: int) -> list[Event]:
        """Return the last so many."""
        return [self._events[each] for each in self._numbers[max(0, len(self) - num_events) :]]

    def between(self, first: int, last: int) -> list[Event]:
        """Return those with these numbers, the two included."""
        numbers = self._numbers[bisect_left(self._numbers, first) : bisect_right(self._numbers, last)]
        return [self._events[each] for each in numbers]

    def lacks(self, number: int) -> bool:
        """Whether it would take an event of that number."""
        return number > self.floor and number not in self._events

    def segments(self) -> list[Segment]:
        """Return what it has, ascending."""
        found: list[Segment] = []
        for number in self._numbers:
            term = self._events[number].term
            if found and found[-1][0] == term and found[-1][2] == number - 1:
                found[-1] = (term, found[-1][1], number)
            else:
                found.append((term, number, number))
        return found

    def add(self, event: Event) -> bool:
        """Take it in, wherever it belongs; returns whether it was news."""
        number = event.number
        held = self._events.get(number)
        if number <= self.floor or (held is not None and held.term >= event.term):
            return False
        if held is not None:
            self._forget(number)
        size = len(json.dumps(to_json(event), separators=(",", ":")))
        insort(self._numbers, number)
        self._events[number], self._sizes[number] = event, size
        self._num_bytes += size
        self.counts[event.kind] += 1
        while len(self) > 1 and (len(self) > self._max_events or self._num_bytes > self._max_bytes):
            self.floor = self._numbers[0]
            del self._events[self.floor]
            self._numbers.pop(0)
            self._num_bytes -= self._sizes.pop(self.floor)
        return number in self._events

    def agree(self, segments: Iterable[Segment]) -> None:
        """Forget what is of another term than the coordinator says: it was recorded while we were cut off."""
        for term, first, last in segments:
            for event in self.between(first, last):
                if event.term != term:
                    self._forget(event.number)

    def _forget(self, number: int) -> None:
        event = self._events.pop(number)
        self._numbers.remove(number)
        self._num_bytes -= self._sizes.pop(number)
        self.counts[event.kind] -= 1


class CatchingUp:
    """Which events another agent is asked for: those that it has and we lack, the latest first, a few at a time.

    ``below``: only those with smaller numbers.
    """

    def __init__(self, history: History, segments: Iterable[Segment], *, below: float = inf) -> None:
        self._history, self._below = history, below
        self._offered = sorted((first, last) for _, first, last in segments)
        self._asked: int | None = None

    def next(self) -> tuple[int, int] | None:
        """Return the first and the last number to ask for now; None if nothing is lacking, or an answer is due."""
        if self._asked is not None:
            return None
        for first, last in reversed(self._offered):
            lowest = max(first, self._history.floor + 1)
            number = int(min(last, self._below - 1))
            while number >= lowest and not self._history.lacks(number):
                number -= 1
            if number >= lowest:
                self._below = self._asked = max(lowest, number - AT_ONCE + 1)
                return self._asked, number
        return None

    def answered(self, first: int | None) -> bool:
        """What was asked for, from ``first`` on, has come, as far as it is there. False: it was not asked for now."""
        if first is None or first != self._asked:
            return False
        self._asked = None
        return True


def first_number(history: History, told: Iterable[Segment], num_recorded: int) -> int:
    """Return with which number a coordinator begins: above all that anybody can have seen.

    ``told``: what its followers have; ``num_recorded``: how many there were when its predecessor last said so.
    """
    last = max([history.last, *(last for _, _, last in told)])
    return last + 1 if last >= num_recorded else num_recorded + UNSEEN


def is_covered(history: History, told: Iterable[Segment], below: int) -> bool:
    """Whether all events with smaller numbers are known, here or to those who told us; or were too many to keep."""
    known = sorted((first, last) for _, first, last in [*history.segments(), *told])
    covered = history.floor
    for first, last in known:
        if first > covered + 1:
            break
        covered = max(covered, last)
    return covered >= below - 1
