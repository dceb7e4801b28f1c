"""Decide which spans tell of one request: one for all of it, and one for each attempt at each stage. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .hops import Executed, Hop, Sent

Attribute = str | int | float | bool
LOST = "the replica was lost before it was done"
NO_RESULT = "no result came from it"


@dataclass(frozen=True, kw_only=True)
class Journey:
    """One request from its entry to its end. Unix times. ``hops``: as noted on its way.

    ``error``: the class of what it ended in, ``error_text`` its message; empty for an answer. ``where``: the stage at
    which its time ran out, if that is known.
    """

    pipeline: str
    gateway: str
    request_id: str
    opened: float
    ended: float
    attempts: int
    hops: tuple[Hop, ...] = ()
    error: str = ""
    error_text: str = ""
    where: str = ""


@dataclass(frozen=True)
class Event:
    name: str
    at: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Span:
    """Unix times. ``error``: why it failed; empty if it did not."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, Attribute]
    events: Sequence[Event] = ()
    error: str = ""


def spans_of(journey: Journey) -> tuple[Span, list[Span]]:
    """Return the span of the whole request, and those below it in the order in which they began."""
    attributes: dict[str, Attribute] = {
        "multiworld.pipeline": journey.pipeline,
        "multiworld.gateway": journey.gateway,
        "multiworld.request_id": journey.request_id,
        "multiworld.attempts": journey.attempts,
    }
    if journey.where:
        attributes["multiworld.where"] = journey.where
    if journey.error:
        attributes["error.type"] = journey.error
    sends = _sends(journey)
    root = Span(
        name=f"infer {journey.pipeline}",
        began=journey.opened,
        ended=journey.ended,
        attributes=attributes,
        events=[_replay(hop) for hop in sends if hop.why],
        error=journey.error_text or journey.error,
    )
    done = [hop for hop in journey.hops if isinstance(hop, Executed)]
    numbers: dict[str, int] = {}
    below = []
    for index, hop in enumerate(sends):
        number = numbers[hop.stage] = numbers.get(hop.stage, 0) + 1
        result = next((each for each in done if each.by == hop.to), None)
        if result is not None:
            done.remove(result)
        following = next((each for each in sends[index + 1 :] if each.stage == hop.stage), None)
        below.append(_attempt(journey, hop, result, number, following))
    return root, below


def _sends(journey: Journey) -> list[Sent]:
    """Return to whom it was sent, in order; the parts that a stage joins are one."""
    first: dict[tuple[str, str, int], Sent] = {}
    for hop in sorted((hop for hop in journey.hops if isinstance(hop, Sent)), key=lambda hop: hop.at):
        first.setdefault((hop.stage, hop.to, hop.attempt), hop)
    return list(first.values())


def _attempt(journey: Journey, hop: Sent, result: Executed | None, number: int, following: Sent | None) -> Span:
    attributes: dict[str, Attribute] = {
        "multiworld.stage": hop.stage,
        "multiworld.replica": hop.to,
        "multiworld.attempt": number,
        "multiworld.gateway_attempt": hop.attempt,
    }
    events = [_replay(hop)] if hop.why else []
    if number == 1:
        attributes["multiworld.wait_s"] = _waited_s(journey, hop.at)
    if result is None:
        why = "" if following is None else following.why
        if why == "suspect" and following is not None:
            events.append(Event("suspect", following.at))
        return Span(
            name=hop.stage,
            began=hop.at,
            ended=journey.ended if following is None else following.at,
            attributes=attributes,
            events=events,
            error={"lost": LOST, "suspect": ""}.get(why, NO_RESULT),
        )
    attributes |= {
        "multiworld.transfer_s": max(0.0, result.arrived - hop.at),
        "multiworld.queue_s": max(0.0, result.began - result.arrived),
        "multiworld.compute_s": max(0.0, result.ended - result.began),
        "multiworld.batch": result.batch,
        "multiworld.weights": result.version,
    }
    events += [Event("arrived", result.arrived), Event("executed", result.began)]
    return Span(
        name=hop.stage,
        began=hop.at,
        ended=max(result.ended, hop.at),
        attributes=attributes,
        events=events,
        error=result.error,
    )


def _replay(hop: Sent) -> Event:
    attributes = {"multiworld.stage": hop.stage, "multiworld.replica": hop.to, "multiworld.why": hop.why}
    return Event("replayed", hop.at, attributes)


def _waited_s(journey: Journey, at: float) -> float:
    """How long the sender had it before a replica had room: since the entry, or since the last result before it."""
    ends = [hop.ended for hop in journey.hops if isinstance(hop, Executed) and hop.ended <= at]
    return max(0.0, at - max([journey.opened, *ends]))
