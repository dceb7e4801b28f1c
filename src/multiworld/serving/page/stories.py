"""Tell an event of a deployment in one sentence, with its kind and how alarming it is. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import PeerLeftError

__all__ = ["CATEGORIES", "Story", "tell"]

Event = Mapping[str, Any]
Tone = Literal["good", "calm", "warn", "bad", ""]
CATEGORIES = ("fault", "replica", "scaling", "update", "other", "world")
"""``replica``: one is started, or there; ``world``: edges between members, of which there are many."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """``at``: Unix time. ``about``: the stage or host that it is about; empty for the whole deployment."""

    at: float
    kind: str
    category: str
    tone: Tone
    about: str
    text: str
    member: str = ""
    """The replica or gateway that it is about, if it is about one."""
    detail: str = ""


def tell(event: Event) -> Story:
    """Return what an event, as ``History.to_json`` gives it, says to people."""
    kind = str(event.get("kind", ""))
    try:
        category, tone, text = TELLERS.get(kind, _unknown)(event)
    except (KeyError, TypeError, ValueError, AttributeError):  # of a controller of another version
        category, tone, text = _unknown(event)
    return Story(
        at=float(event.get("at", 0.0)),
        kind=kind,
        category=category,
        tone=tone,
        about=str(event.get("stage", event.get("host", ""))),
        text=text,
        member=str(event.get("member", "")),
        detail=str(event.get("traceback", "")) or _rest(str(event.get("error", ""))),
    )


Told = tuple[str, Tone, str]


def _unknown(event: Event) -> Told:
    fields = ", ".join(f"{name}={value}" for name, value in event.items() if name not in ("kind", "at", "number"))
    return "other", "", f"{event.get('kind', 'something')}: {fields}"


def _started(event: Event) -> Told:
    where = f" on {event['host']}" if event["host"] else ""
    return "replica", "calm", f"{event['member']} is started{where}: {_first(event['reason'])}"


def _ready(event: Event) -> Told:
    text = f"{event['member']} takes requests, {_seconds(event['took_s'])} after it was ordered"
    return "replica", "good", text + (f" (version {event['version']})" if event["version"] != 1 else "")


def _lost(event: Event) -> Told:
    return "fault", "bad", f"{event['member']} is lost: {_first(event['why'])}"


def _load_failed(event: Event) -> Told:
    source = f", weights from {event['source']}" if event["source"] else ""
    return "fault", "bad", f"{event['member']} could not load its work{source}: {_first(event['error'])}"


def _backed_off(event: Event) -> Told:
    text = f"{event['stage']}: {event['deaths']} replicas died young, the next one is started in "
    return "fault", "warn", text + _seconds(event["delay_s"])


def _scaled(event: Event) -> Told:
    return "scaling", "calm", f"{event['stage']} is scaled from {event['old']} to {event['new']}: {event['reason']}"


def _updated(event: Event) -> Told:
    text = f"{event['stage']} has version {event['version']} everywhere, after {_seconds(event['took_s'])}"
    return "update", "good", text


def _rolled_back(event: Event) -> Told:
    text = f"{event['stage']} stays with version {event['previous']}; {event['version']} failed: {event['reason']}"
    return "update", "bad", text


def _edge_broken(event: Event) -> Told:
    times = f" ({event['attempts']} times in a row)" if event["attempts"] > 1 else ""
    text = f"the world {_edge(event)} broke{times}: {_first(event['error'])}"
    if event["error"].startswith(PeerLeftError.__name__):
        return "world", "", text
    return "fault", "warn", text


def _ended(event: Event) -> Told:
    code = event["returncode"]
    how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
    return "replica", "warn", f"the process of {event['member']} {how}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those of real time have numbers only
        return f"signal {number}"


def _edge(event: Event) -> str:
    return f"{event['upstream']} → {event['downstream']}"


def _first(text: str) -> str:
    """Return the first sentence: what failed, without what still works and what to do next."""
    sentence, _, rest = text.strip().partition(". ")
    return sentence + "." if rest else sentence


def _rest(text: str) -> str:
    """Return the whole text if its first sentence is not all."""
    return "" if _first(text) == text.strip() else text


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


TELLERS: dict[str, Callable[[Event], Told]] = {
    "ReplicaStarted": _started,
    "ReplicaReady": _ready,
    "ReplicaDraining": lambda event: ("scaling", "warn", f"{event['member']} is drained: {event['reason']}"),
    "ReplicaLeft": lambda event: ("scaling", "calm", f"{event['member']} has finished and left"),
    "ReplicaLost": _lost,
    "LoadFailed": _load_failed,
    "BackedOff": _backed_off,
    "StageWaits": lambda event: ("fault", "warn", f"{event['stage']} waits for a replica: {event['reason']}"),
    "EdgeOpened": lambda event: ("world", "", f"{_edge(event)} is open, epoch {event['epoch']}"),
    "EdgeClosed": lambda event: ("world", "", f"{_edge(event)} is closed, epoch {event['epoch']}"),
    "EdgeBroken": _edge_broken,
    "EdgeLost": lambda event: ("world", "", f"{event['member']}: {_edge(event)} broke: {_first(event['text'])}"),
    "ProcessEnded": _ended,
    "Scaled": _scaled,
    "UpdateStarted": lambda event: ("update", "calm", f"{event['stage']} is brought to version {event['version']}"),
    "CanaryPassed": lambda event: (
        "update",
        "good",
        f"{event['member']} (version {event['version']}) answers a canary request as {event['giver']} does",
    ),
    "CanarySkipped": lambda event: (
        "update",
        "warn",
        f"{event['member']} (version {event['version']}) serves without a canary request: {event['reason']}",
    ),
    "UpdateFinished": _updated,
    "UpdateRolledBack": _rolled_back,
    "Tuned": lambda event: (
        "update",
        "calm",
        f"{event['stage']} batches otherwise: " + ", ".join(f"{k} {v}" for k, v in event["settings"].items()),
    ),
    "PipelineReady": lambda event: ("other", "good", f"every stage takes requests, after {_seconds(event['after_s'])}"),
    "PipelineUnready": lambda event: ("fault", "bad", f"not ready: {event['missing']}"),
    "HostJoined": lambda event: ("other", "calm", f"host {event['host']} ({event['address']}) joined"),
    "HostLeft": lambda event: ("other", "calm", f"host {event['host']} was stopped"),
    "HostsMissing": lambda event: (
        "fault",
        "warn",
        f"only {event['present']} of {event['expected']} hosts came in time: replicas are placed on those",
    ),
    "HostLost": lambda event: ("fault", "bad", f"host {event['host']} is lost"),
    "ControllerSilent": lambda event: ("fault", "warn", f"the controller does not answer: {event['why']}"),
    "ControllerBack": lambda event: (
        "other",
        "good",
        f"the controller answers again, after {_seconds(event['after_s'])}",
    ),
}
