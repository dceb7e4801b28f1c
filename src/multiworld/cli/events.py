"""``multiworld events``: what happened in a running job, and what happens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ..command_parser import CommandParser
from ..elastic.control.messages import Events, EventsOf
from ..elastic.job.history import Event
from ..wire.messages import to_json
from .cluster import clock, cluster_parser, conversation, name_job, told


def main(arguments: Sequence[str] | None = None) -> int:
    """Print events: 0, or 1 if the job cannot be asked, or the agent that is asked goes away."""
    parser = command_parser()
    options = parser.parse_args(arguments)
    if options.last is not None and options.last < 0:
        parser.error(f"--last {options.last}: expected a number of events")

    def work() -> None:
        question = EventsOf(last=options.last, follow=options.follow)
        with conversation(options) as talk:
            name_job(options, talk)
            for part in talk.parts(question, Events) if options.follow else [talk.ask(question, Events)]:
                _show(part.events, as_json=options.json)

    return told("events", work)


def command_parser() -> CommandParser:
    parser = cluster_parser("events", "Show what has happened in a running job since it began.")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what happens from now on")
    parser.add_argument("-n", "--last", type=int, metavar="N", help="only the last N events that there are")
    return parser


def _show(events: Iterable[Event], *, as_json: bool) -> None:
    for event in events:
        print(json.dumps(to_json(event)) if as_json else _line(event), flush=True)


def _line(event: Event) -> str:
    return f"{clock(event.at)}  g{event.generation} t{event.term}  {event.text}"
