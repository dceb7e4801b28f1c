"""``multiworld serve events`` and ``serve logs``: what has happened and was written, and what comes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from ..serving.control.client.client import ControllerCalls, ControllerLostError, ask, conversation
from ..serving.control.client.deployment_file import DeploymentRecord, find_deployment
from ..serving.control.client.questions import EventsSince, EventsTold, LinesOfMembers, MembersLines
from ..serving.control.history import EventRecord
from ..serving.errors import DeploymentError
from ..serving.hosts.logs.recent_lines import LinesTold
from ..wire.backoff import BackOff
from ..wire.messages import to_json
from .cluster import clock, told

LAST_LINES = 10
LOOK_S = 0.25
LONGEST_LOOK_S = 2.0

Show = Callable[[ControllerCalls, argparse.Namespace], None]


def show_events(options: argparse.Namespace) -> int:
    """Print events until they end; 1 if the deployment cannot be asked, or goes away."""
    return _told("events", options, _events)


def show_logs(options: argparse.Namespace) -> int:
    """Print the lines of members; 1 if the deployment cannot be asked, or goes away."""
    return _told("logs", options, _Logs().show)


def _told(verb: str, options: argparse.Namespace, show: Show) -> int:
    def ask_and_show() -> None:
        record = find_deployment(options.name)
        while True:
            try:
                with conversation(record.address, record.token, options.timeout_s) as calls:
                    show(calls, options)
                return
            except ControllerLostError as error:
                if not options.follow:
                    raise
                print(f"multiworld serve {verb}: {error}; the next one is waited for", file=sys.stderr)
                record = _await_controller(record)

    return told(f"serve {verb}", ask_and_show, DeploymentError)


def _await_controller(before: DeploymentRecord) -> DeploymentRecord:
    """Return when the deployment's next controller listens. Raises DeploymentError if the deployment has ended."""
    back_off = BackOff(LOOK_S, LONGEST_LOOK_S)
    while True:
        record = find_deployment(before.name)
        try:
            ask(record.address, record.token, EventsSince(since=sys.maxsize), EventsTold, timeout_s=LONGEST_LOOK_S)
        except DeploymentError:
            time.sleep(back_off.next_s())
        else:
            return record


def _events(calls: ControllerCalls, options: argparse.Namespace) -> None:
    events = calls.ask(EventsSince(), EventsTold).events
    since = _last_number(events, 0)
    if options.last is not None:
        events = events[len(events) - min(options.last, len(events)) :]
    while True:
        _show(json.dumps(to_json(event)) if options.json else _event_text(event) for event in events)
        if not options.follow:
            return
        time.sleep(LOOK_S)
        events = calls.ask(EventsSince(since=since), EventsTold).events
        since = _last_number(events, since)


def _last_number(events: Sequence[EventRecord], otherwise: int) -> int:
    return max([otherwise, *(event.number for event in events)])


def _event_text(event: EventRecord) -> str:
    """Return an event on one line, in the words of the page."""
    from ..serving.page.stories import tell

    story = tell(event)
    return f"{clock(story.at)}  {story.kind}  {story.text}"


class _Logs:
    """``show`` again with the next controller: hosts keep the lines of their members, and how many there were."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._has_shown = False

    def show(self, calls: ControllerCalls, options: argparse.Namespace) -> None:
        while True:
            last = None if self._has_shown else options.last  # of those that come later, all
            question = LinesOfMembers(of=options.of or "", since=self._since, last=last)
            for member, lines in calls.ask(question, MembersLines).members.items():
                self._show_member(member, lines, as_json=options.json)
            self._has_shown = True
            if not options.follow:
                return
            time.sleep(LOOK_S)

    def _show_member(self, member: str, found: LinesTold, *, as_json: bool) -> None:
        if found.left_out:
            print(f"multiworld serve logs: {found.left_out} lines are left out: too many to follow", file=sys.stderr)
        _show(json.dumps({"member": member, "line": line}) if as_json else line for line in found.lines)
        self._since[member] = found.number


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)
