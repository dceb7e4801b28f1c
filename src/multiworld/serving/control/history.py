"""What was decided, in order, for people and programs: bounded, numbered, each with its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ...wire.messages import REST, Json, to_json
from .fleet.actions import FleetEvent

LENGTH = 1000


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """An event as others see it. ``kind``: its class; ``fields``: what it says besides; in JSON, among the others."""

    number: int = 0
    kind: str
    at: float
    fields: Mapping[str, Json] = field(default_factory=dict, metadata=REST)


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

    def since(self, number: int = 0) -> list[EventRecord]:
        """Return what came after the first ``number`` events."""
        first = self.num_seen - len(self._events)
        return [record_of(event, each) for each, event in enumerate(self._events, first + 1) if each > number]


def record_of(event: FleetEvent, number: int = 0) -> EventRecord:
    fields = to_json(event)
    return EventRecord(number=number, kind=type(event).__name__, at=fields.pop("at"), fields=fields)
