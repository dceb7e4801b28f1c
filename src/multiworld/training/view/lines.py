"""One event of a training as one line of its record, and back. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import or_
from typing import Any, cast

from ...errors import MessageError
from ...wire.messages import MessageSet, parse
from .. import events
from ..events import TrainingEvent

MAX_LINE_BYTES = 1024 * 1024
NON_FINITE = "non_finite"
"""The key beside an event's fields under which numbers stand that JSON does not have: ``{"values.loss": "nan"}``."""


def _kinds() -> tuple[type[TrainingEvent], ...]:
    found = (each for each in vars(events).values() if isinstance(each, type) and issubclass(each, TrainingEvent))
    return tuple(each for each in found if each is not TrainingEvent)


TRAINING_EVENTS: MessageSet[TrainingEvent] = MessageSet(
    "events of a training", cast(Any, reduce(or_, _kinds())), tag="event", max_bytes=MAX_LINE_BYTES
)


def line_of(event: TrainingEvent) -> bytes:
    """Return the event as JSON with its newline. Raises ValueError or TypeError for what no line can hold."""
    try:
        said = TRAINING_EVENTS.to_json(event)
    except ValueError:  # there is hardly ever a number that JSON does not have
        finite, non_finite = _set_aside(event)
        said = {**TRAINING_EVENTS.to_json(finite), NON_FINITE: non_finite}
    data = json.dumps(said, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if len(data) > MAX_LINE_BYTES:
        raise ValueError(f"an event {type(event).__name__} of {len(data)} bytes is longer than {MAX_LINE_BYTES}")
    return data


def event_of(line: bytes) -> TrainingEvent:
    """Return the event of one line. Raises MessageError for what is none, or of a kind this release does not know."""
    said = parse(line, "event")
    event = TRAINING_EVENTS.from_json(said)
    non_finite = said.get(NON_FINITE) if isinstance(said, dict) else None
    if not isinstance(non_finite, dict):
        return event
    return _put_back(event, non_finite)


@dataclass(frozen=True, kw_only=True)
class RecordLines:
    """The events of one file. ``num_damaged``: lines that are no events; ``is_cut``: the last line has no end."""

    events: tuple[TrainingEvent, ...] = ()
    num_damaged: int = 0
    is_cut: bool = False


def read_lines(data: bytes) -> RecordLines:
    """Return the events of a file's bytes. A process that was killed may have left its last line unfinished."""
    found: list[TrainingEvent] = []
    *whole, last = data.split(b"\n")
    num_damaged = 0
    for line in whole:
        if not line.strip():
            continue
        try:
            found.append(event_of(line))
        except MessageError:
            num_damaged += 1
    return RecordLines(events=tuple(found), num_damaged=num_damaged, is_cut=bool(last))


def merged(records: Iterable[Iterable[TrainingEvent]]) -> list[TrainingEvent]:
    """Return the events of all members in the order of time; those of one member keep their own order."""
    in_order: list[tuple[float, str, int, TrainingEvent]] = []
    for record in records:
        latest: dict[str, float] = {}
        for number, event in enumerate(record):
            at = max(event.at, latest.get(event.member, event.at))  # a clock that was set back keeps the order
            latest[event.member] = at
            in_order.append((at, event.member, number, event))
    in_order.sort(key=lambda each: each[:3])
    return [event for _, _, _, event in in_order]


def _set_aside(event: TrainingEvent) -> tuple[TrainingEvent, dict[str, str]]:
    """Return the event with only finite numbers, and the others as text, by their place."""
    non_finite: dict[str, str] = {}
    changes: dict[str, object] = {}
    for each in fields(event):
        value = getattr(event, each.name)
        if isinstance(value, float) and not math.isfinite(value):
            non_finite[each.name] = repr(value)
            changes[each.name] = 0.0
        elif isinstance(value, Mapping):
            wrong = {key: item for key, item in value.items() if isinstance(item, float) and not math.isfinite(item)}
            if wrong:
                non_finite.update({f"{each.name}.{key}": repr(item) for key, item in wrong.items()})
                changes[each.name] = {key: item for key, item in value.items() if key not in wrong}
    return replace(event, **cast(Any, changes)), non_finite


def _put_back(event: TrainingEvent, non_finite: Mapping[object, object]) -> TrainingEvent:
    changes: dict[str, object] = {}
    for place, text in non_finite.items():
        if text not in ("nan", "inf", "-inf") or not isinstance(place, str):
            continue
        name, dot, key = place.partition(".")
        if not hasattr(event, name):
            continue
        if dot and isinstance(getattr(event, name), Mapping):
            before = changes.get(name, getattr(event, name))
            changes[name] = {**cast(Any, before), key: float(str(text))}
        elif not dot:
            changes[name] = float(str(text))
    return replace(event, **cast(Any, changes))
