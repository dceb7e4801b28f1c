"""``multiworld drain``: let a host go, without a failure."""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence
from contextlib import suppress

from ..command_parser import CommandParser
from ..elastic.control.client import ControlError, Conversation
from ..elastic.control.messages import Done, Drain, Events, EventsOf, Here, StatusOf, WhoIsHere
from ..elastic.control.questions import ENDING
from ..elastic.job.status import JobStatus
from ..process.messages import to_json
from .cluster import cluster_parser, conversation, job_of, told

__all__ = ["command_parser", "main"]

LOOK_S = 0.5  # also when nothing is told: its coordinator may have been lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain a host: 0, or 1 if the job refuses or cannot be asked."""
    parser = command_parser()
    options = parser.parse_args(arguments)

    def work() -> None:
        with conversation(options) as talk:
            job = job_of(talk)
            answer = talk.ask(Drain(agent=options.host), Done)
            if options.wait:
                _wait(talk, answer.agent)
        print(json.dumps(to_json(answer)) if options.json else f"job {job}: {answer.text}")

    return told("drain", work)


def command_parser() -> CommandParser:
    parser = cluster_parser(
        "drain", "End the workers of a host gracefully, then its agent, with status 0; the others go on without it."
    )
    parser.add_argument("host", metavar="HOST|INDEX", help="name or address of the host, or its agent's number")
    parser.add_argument("--wait", action="store_true", help="until the host has left the job")
    return parser


def _wait(talk: Conversation, agent: str | None) -> None:
    """Wait until the agent is no part of the job any more, looking whenever something has happened."""
    is_asked = talk.ask(WhoIsHere(), Here).agent == agent
    happened: queue.SimpleQueue[object] = queue.SimpleQueue()
    talk.link.ask(EventsOf(last=0, follow=True), Events, happened.put).add_callback(happened.put)
    try:
        while any(each.id == agent for each in talk.ask(StatusOf(), JobStatus).agents):
            with suppress(queue.Empty):
                happened.get(timeout=LOOK_S)
    except ControlError as error:
        if not (is_asked and (talk.is_lost or error.reason == ENDING)):  # else that is how it leaves
            raise
