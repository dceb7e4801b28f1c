"""Tell an event of a deployment in one sentence, with its kind and how alarming it is. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ...errors import MessageError, PeerLeftError
from ...process.signal_names import how_ended
from ...wire.messages import from_json
from ..control.fleet import actions
from ..control.history import EventRecord

CATEGORIES = ("fault", "replica", "scaling", "update", "other", "world")
"""``replica``: one is started, or there; ``world``: edges between members, of which there are many."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """``at``: Unix time. ``tone``: how alarming it is: good, calm, warn, bad, or nothing.

    ``about``: the stage or host that it is about; empty for the whole deployment.
    """

    number: int = 0
    at: float
    kind: str
    category: str
    tone: str
    about: str
    text: str
    member: str = ""
    """The replica or gateway that it is about, if it is about one."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ControllerSilent(actions.FleetEvent):
    """The controller does not answer who asks it."""

    why: str


@dataclass(frozen=True, kw_only=True)
class ControllerBack(actions.FleetEvent):
    """It answers again. ``after_s``: how long it did not."""

    after_s: float


Event = TypeVar("Event", bound=actions.FleetEvent)


class Teller(NamedTuple):
    event: type[Any]
    category: str
    tone: str
    text: Callable[[Any], str]


def tell(record: EventRecord, number: int = 0) -> Story:
    """Return what an event says to people. One of a controller of another version is told as it is."""
    fields = record.fields
    category, tone, text = _told(record)
    return Story(
        number=number,
        at=record.at,
        kind=record.kind,
        category=category,
        tone=tone,
        about=str(fields.get("stage", fields.get("host", ""))),
        text=text,
        member=str(fields.get("member", "")),
        detail=str(fields.get("traceback") or fields.get("last_lines") or _rest(str(fields.get("error", "")))),
    )


def _told(record: EventRecord) -> tuple[str, str, str]:
    teller = TELLERS.get(record.kind)
    try:
        event = None if teller is None else from_json(teller.event, dict(record.fields))
    except MessageError:
        event = None
    if teller is None or event is None:
        return "other", "", f"{record.kind}: " + ", ".join(f"{name}={each}" for name, each in record.fields.items())
    text = teller.text(event)
    if isinstance(event, actions.EdgeBroken) and event.error.startswith(PeerLeftError.__name__):
        return "world", "", text
    return teller.category, teller.tone, text


def _started(event: actions.ReplicaStarted) -> str:
    where = f" on {event.host}" if event.host else ""
    return f"{event.member} is started{where}: {_first(event.reason)}"


def _ready(event: actions.ReplicaReady) -> str:
    text = f"{event.member} takes requests, {_seconds(event.took_s)} after it was ordered"
    return text + (f" (version {event.version})" if event.version != 1 else "")


def _load_failed(event: actions.LoadFailed) -> str:
    source = f", weights from {event.source}" if event.source else ""
    return f"{event.member} could not load its work{source}: {_first(event.error)}"


def _edge_broken(event: actions.EdgeBroken) -> str:
    times = f" ({event.attempts} times in a row)" if event.attempts > 1 else ""
    return f"the world {_edge(event)} broke{times}: {_first(event.error)}"


def _edge(event: actions.EdgeOpened | actions.EdgeClosed | actions.EdgeBroken | actions.EdgeLost) -> str:
    return f"{event.upstream} → {event.downstream}"


def _first(text: str) -> str:
    """Return the first sentence: what failed, without what still works and what to do next."""
    sentence, _, rest = text.strip().partition(". ")
    return sentence + "." if rest else sentence


def _rest(text: str) -> str:
    """Return the whole text if its first sentence is not all."""
    return "" if _first(text) == text.strip() else text


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _teller(event: type[Event], category: str, tone: str, text: Callable[[Event], str]) -> tuple[str, Teller]:
    return event.__name__, Teller(event, category, tone, text)


TELLERS: dict[str, Teller] = dict(
    (
        _teller(actions.ReplicaStarted, "replica", "calm", _started),
        _teller(actions.ReplicaReady, "replica", "good", _ready),
        _teller(actions.ReplicaDraining, "scaling", "warn", lambda each: f"{each.member} is drained: {each.reason}"),
        _teller(actions.ReplicaLeft, "scaling", "calm", lambda each: f"{each.member} has finished and left"),
        _teller(actions.ReplicaLost, "fault", "bad", lambda each: f"{each.member} is lost: {_first(each.why)}"),
        _teller(actions.LoadFailed, "fault", "bad", _load_failed),
        _teller(
            actions.BackedOff,
            "fault",
            "warn",
            lambda each: (
                f"{each.stage}: {each.deaths} replicas died young, the next one is started in {_seconds(each.delay_s)}"
            ),
        ),
        _teller(actions.StageWaits, "fault", "warn", lambda each: f"{each.stage} waits for a replica: {each.reason}"),
        _teller(actions.EdgeOpened, "world", "", lambda each: f"{_edge(each)} is open, epoch {each.epoch}"),
        _teller(actions.EdgeClosed, "world", "", lambda each: f"{_edge(each)} is closed, epoch {each.epoch}"),
        _teller(actions.EdgeBroken, "fault", "warn", _edge_broken),
        _teller(actions.EdgeLost, "world", "", lambda each: f"{each.member}: {_edge(each)} broke: {_first(each.text)}"),
        _teller(
            actions.ProcessEnded,
            "replica",
            "warn",
            lambda each: f"the process of {each.member} {how_ended(each.returncode)}",
        ),
        _teller(
            actions.Scaled,
            "scaling",
            "calm",
            lambda each: f"{each.stage} is scaled from {each.old} to {each.new}: {each.reason}",
        ),
        _teller(
            actions.UpdateStarted, "update", "calm", lambda each: f"{each.stage} is brought to version {each.version}"
        ),
        _teller(
            actions.CanaryPassed,
            "update",
            "good",
            lambda each: f"{each.member} (version {each.version}) answers a canary request as {each.giver} does",
        ),
        _teller(
            actions.CanarySkipped,
            "update",
            "warn",
            lambda each: f"{each.member} (version {each.version}) serves without a canary request: {each.reason}",
        ),
        _teller(
            actions.UpdateFinished,
            "update",
            "good",
            lambda each: f"{each.stage} has version {each.version} everywhere, after {_seconds(each.took_s)}",
        ),
        _teller(
            actions.UpdateRolledBack,
            "update",
            "bad",
            lambda each: f"{each.stage} stays with version {each.previous}; {each.version} failed: {each.reason}",
        ),
        _teller(
            actions.Tuned,
            "update",
            "calm",
            lambda each: f"{each.stage} batches otherwise: " + ", ".join(f"{k} {v}" for k, v in each.settings.items()),
        ),
        _teller(
            actions.PipelineReady,
            "other",
            "good",
            lambda each: f"every stage takes requests, after {_seconds(each.after_s)}",
        ),
        _teller(actions.PipelineUnready, "fault", "bad", lambda each: f"not ready: {each.missing}"),
        _teller(actions.HostJoined, "other", "calm", lambda each: f"host {each.host} ({each.address}) joined"),
        _teller(actions.HostLeft, "other", "calm", lambda each: f"host {each.host} was stopped"),
        _teller(
            actions.HostsMissing,
            "fault",
            "warn",
            lambda each: f"only {each.present} of {each.expected} hosts came in time: replicas are placed on those",
        ),
        _teller(actions.HostLost, "fault", "bad", lambda each: f"host {each.host} is lost"),
        _teller(ControllerSilent, "fault", "warn", lambda each: f"the controller does not answer: {each.why}"),
        _teller(
            ControllerBack,
            "other",
            "good",
            lambda each: f"the controller answers again, after {_seconds(each.after_s)}",
        ),
    )
)
