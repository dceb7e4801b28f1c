"""``multiworld drain``: let a host go, without a failure."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from contextlib import suppress

from ..command_parser import CommandParser
from ..elastic.control.client import ControlError, Conversation
from ..elastic.control.messages import Drain, Events, EventsOf, Here, StatusOf, WhoIsHere
from ..elastic.control.questions import ENDING
from ..elastic.job.status import JobStatus
from .cluster import carry_out, cluster_parser

LOOK_S = 0.5  # also when nothing is told: its coordinator may have been lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain a host: 0, or 1 if the job refuses or cannot be asked."""
    options = command_parser().parse_args(arguments)
    then = (lambda talk, answer: wait_until_gone(talk, answer.agent)) if options.wait else None
    return carry_out("drain", options, Drain(agent=options.host), then)


def command_parser() -> CommandParser:
    parser = cluster_parser(
        "drain", "End the workers of a host gracefully, then its agent, with status 0; the others go on without it."
    )
    parser.add_argument("host", metavar="HOST|INDEX", help="name or address of the host, or its agent's number")
    parser.add_argument("--wait", action="store_true", help="until the host has left the job")
    return parser


def wait_until_gone(talk: Conversation, agent: str | None) -> None:
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
