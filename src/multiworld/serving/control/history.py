"""What was decided, in order, for people and programs: bounded, numbered, each with its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from .actions import FleetEvent

__all__ = ["History"]

LENGTH = 1000


class History:
    """The last thousand events; ``num_seen`` counts all."""

    def __init__(self) -> None:
        self._events: deque[FleetEvent] = deque(maxlen=LENGTH)
        self.num_seen = 0

    def __iter__(self) -> Iterator[FleetEvent]:
        return iter(tuple(self._events))

    def add(self, event: FleetEvent, at: float) -> FleetEvent:
        """Keep an event that happened at Unix time ``at``, and return it with that time."""
        event = replace(event, at=at)
        self._events.append(event)
        self.num_seen += 1
        return event

    def to_json(self, since: int = 0) -> list[dict[str, Any]]:
        """Return what came after the first ``since`` events: number, class, time and fields of each."""
        first = self.num_seen - len(self._events)
        return [
            {"number": number, "kind": type(event).__name__, **asdict(event)}
            for number, event in enumerate(self._events, first + 1)
            if number > since
        ]
