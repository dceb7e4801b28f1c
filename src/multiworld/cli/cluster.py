"""What the commands for a running job have in common: how they find it, and how they say what went wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..command_parser import CommandParser
from ..elastic.control.client import ControlError, Conversation, Session
from ..elastic.control.messages import Done, Drain, Here, Kill, Scale, WhoIsHere
from ..wire.endpoints.addresses import addresses_of, is_address
from ..wire.endpoints.token import weakness_of
from ..wire.messages import to_json
from ..world.launcher.launched import token_of_environment

EPILOG = """\
Without --endpoint an agent of this host is asked: of the only job there is, or of that with --job. Any agent answers.
Over the network MULTIWORLD_TOKEN must be the job's; on this host it is enough to be the same user.

Exit status: 0, 1 if the job cannot be asked or refuses, 2 for a command that makes no sense."""


def cluster_parser(command: str, description: str) -> CommandParser:
    """Return a parser with the options that all these commands take."""
    parser = CommandParser(prog=f"multiworld {command}", description=description, epilog=EPILOG)
    parser.add_argument(
        "--endpoint", type=_endpoint, metavar="HOST:PORT", help="address of any agent, such as the rendezvous endpoint"
    )
    parser.add_argument("--job", metavar="ID", help="which job, if several run on this host (their --rdzv-id)")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: one object, or one a line where there are many"
    )
    return parser


def told(command: str, work: Callable[[], None], refusal: type[Exception] = ControlError) -> int:
    """Do the work of a command and return its exit status; a ``refusal`` is one line."""
    try:
        work()
    except refusal as error:
        print(f"multiworld {command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def clock(at_s: float) -> str:
    """Return the local time of day of a moment in Unix time, to the millisecond."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at_s))}.{int(at_s * 1000) % 1000:03d}"


def job_of(talk: Conversation) -> str:
    """Return the job that was taken: nobody may have named it. To be asked before an agent is killed."""
    return talk.ask(WhoIsHere(), Here).job


def name_job(options: argparse.Namespace, talk: Conversation) -> None:
    """Say on standard error which job it is that is shown, if the user did not."""
    if options.job is None and not options.json:
        print(f"job {job_of(talk)}", file=sys.stderr, flush=True)


def carry_out(
    command: str,
    options: argparse.Namespace,
    order: Drain | Kill | Scale,
    then: Callable[[Conversation, Done], None] | None = None,
) -> int:
    """Have the job do something, then print what it says of that; return the command's exit status."""

    def work() -> None:
        with conversation(options) as talk:
            job = job_of(talk)
            answer = talk.ask(order, Done)
            if then is not None:
                then(talk, answer)
        print(json.dumps(to_json(answer)) if options.json else f"job {job}: {answer.text}")

    return told(command, work)


@contextmanager
def conversation(options: argparse.Namespace) -> Iterator[Conversation]:
    """Open a conversation with an agent of the job that the options mean. Raises ControlError."""
    with session(options) as (_, talk):
        yield talk


@contextmanager
def session(options: argparse.Namespace) -> Iterator[tuple[Session, Conversation]]:
    """As ``conversation``, for commands that open more of them."""
    with Session() as opened:
        if options.endpoint is None:
            yield opened, opened.connect_here(options.job)
            return
        host, port = options.endpoint
        token = token_of_environment()
        if warning := weakness_of(token):
            print(warning, file=sys.stderr)
        talk = opened.connect(resolve(host), port, token)
        if options.job is not None:
            job = job_of(talk)
            if job != options.job:
                raise ControlError(f"the agent at {host}:{port} belongs to the job {job!r}, not to {options.job!r}")
        yield opened, talk


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r}: expected HOST:PORT")
    return host, int(port)


def resolve(host: str) -> str:
    """Return a numeric address. Raises ControlError."""
    if is_address(host):
        return host
    try:
        return addresses_of(host)[0]
    except OSError as error:
        raise ControlError(f"the name {host} cannot be resolved: {error.strerror}") from error


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the rows below their header, each column as wide as it must be."""
    lines = [[*map(str, header)], *([*map(str, row)] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return ``0-3,6`` for 0, 1, 2, 3 and 6; a dash for none."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts) or "-"
