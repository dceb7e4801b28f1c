"""``multiworld serve events`` and ``serve logs``: what has happened and was written, and what comes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..serving.errors import DeploymentError
from .cluster import told

__all__ = ["LAST_LINES", "event_text", "show_events", "show_logs"]

LAST_LINES = 10
LOOK_S = 0.25

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


def show_events(options: argparse.Namespace) -> int:
    """Print events until they end; 1 if the deployment cannot be asked, or goes away."""
    return _told("events", options, _events)


def show_logs(options: argparse.Namespace) -> int:
    """Print the lines of members; 1 if the deployment cannot be asked, or goes away."""
    return _told("logs", options, _logs)


def _told(verb: str, options: argparse.Namespace, work: Callable[[Ask, argparse.Namespace], None]) -> int:
    from ..serving.hosts import conversation, find_deployment

    def ask_and_show() -> None:
        record = find_deployment(options.name)
        with conversation(record.address, record.token, options.timeout_s) as ask:
            work(ask, options)

    return told(f"serve {verb}", ask_and_show, DeploymentError)


def _events(ask: Ask, options: argparse.Namespace) -> None:
    events = ask({"ask": "events"})["events"]
    since = events[-1]["number"] if events else 0
    if options.last is not None:
        events = events[len(events) - min(options.last, len(events)) :]
    if not options.follow:
        if options.json:
            print(json.dumps({"events": events}))
        else:
            print("\n".join(map(event_text, events)) or "nothing has happened yet")
        return
    while True:
        _show(json.dumps(event) if options.json else event_text(event) for event in events)
        time.sleep(LOOK_S)
        events = ask({"ask": "events", "since": since})["events"]
        since = max([since, *(event["number"] for event in events)])


def event_text(event: Mapping[str, Any]) -> str:
    """Return an event on one line."""
    at = time.strftime("%H:%M:%S", time.localtime(event["at"]))
    shown = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in event.items()
        if name not in ("at", "kind", "number") and value not in ("", None)
    }
    return f"{at}  {event['kind']}  " + ", ".join(f"{name} {value}" for name, value in shown.items())


def _logs(ask: Ask, options: argparse.Namespace) -> None:
    since: dict[str, int] = {}
    last: int | None = options.last
    while True:
        told = ask({"ask": "logs", "of": options.of or "", "since": since, "last": last})["members"]
        for member, lines in told.items():
            if lines["left_out"]:
                count = lines["left_out"]
                print(f"multiworld serve logs: {count} lines are left out: too many to follow", file=sys.stderr)
            _show(json.dumps({"member": member, "line": line}) if options.json else line for line in lines["lines"])
            since[member] = lines["number"]
        if not options.follow:
            return
        last = None  # of those that come later, all
        time.sleep(LOOK_S)


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)
