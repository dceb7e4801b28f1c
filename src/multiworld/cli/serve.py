"""``multiworld serve``: bring a pipeline up behind HTTP on this host, or look at one that is up and change it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from ..command_parser import CommandParser
from ..extras import SERVING, install_extra, missing_modules
from ..serving.control.client import questions
from ..serving.control.client.client import ask
from ..serving.control.client.deployment_file import DeploymentRecord, find_deployment
from ..serving.control.status import ControllerStatus, GatewayStatus, MemberStatus, ReplicaStatus
from ..serving.errors import DeploymentError
from ..serving.member.reports import GatewayStatistics, ReplicaStatistics
from ..serving.tracing.choice import ENDPOINT_VARIABLE
from ..wire.messages import to_json
from ..world.liveness import DEFAULT_LEASE_S
from .checks import note_uncompiled
from .serve_follow import LAST_LINES, show_events, show_logs

END_POLL_S = 0.05
LONGEST_S = 366 * 86400.0  # that commands wait

ABOUT = {
    "status": "How it stands.",
    "watch": "How it stands, live; in a browser: /page.",
    "scale": "Have N replicas of a stage.",
    "drain": "Let a replica finish and end; another takes its place first.",
    "update": "Give a stage the weights that torch.save wrote to a file.",
    "tune": "Change how a stage batches.",
    "events": "What happened, with reasons, and what happens.",
    "logs": "The last lines that replicas wrote, on whichever host, and those that follow.",
    "stop": "Answer what is open, and end.",
    "join": "Start replicas on this host for a pipeline that is served on another.",
}
"""What follows ``serve`` in place of a target, and what it does."""
SHOWN = {
    "scale": "scale STAGE N",
    "drain": "drain REPLICA",
    "update": "update STAGE FILE",
    "tune": "tune STAGE",
    "logs": "logs [REPLICA]",
    "join": "join ADDRESS:PORT",
}
DESCRIPTION = """\
Serve a pipeline: TARGET is app.py:pipeline, package.module:pipeline, or a YAML file. Ends with Ctrl-C, and everything
with it; open requests are answered first. Of a pipeline that is up:

""" + "\n".join(f"  multiworld serve {SHOWN.get(verb, verb):<19}{about}" for verb, about in ABOUT.items())


def main(arguments: Sequence[str]) -> int:
    """Run one of them and return the exit status: 0, 1 if it failed, 2 for a command that makes no sense."""
    if arguments and arguments[0] in VERBS:
        return _asked(arguments[0], arguments[1:])
    if arguments and arguments[0] == "watch":
        return _watch(arguments[1:])
    if arguments and arguments[0] == "join":
        from ..serving.hosts.__main__ import main as join

        return join(arguments[1:], prog="multiworld serve join")
    options = command_parser().parse_args(arguments)
    if missing := missing_modules(SERVING):
        print(f"multiworld serve needs {', '.join(missing)}: {install_extra('serving')}", file=sys.stderr)
        return 2
    note_uncompiled("serve")
    from ..serving.launch import serve

    return serve(options)


def command_parser() -> CommandParser:
    parser = CommandParser(prog="multiworld serve", description=DESCRIPTION)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--host", help="numeric address for HTTP (default: 127.0.0.1, this host alone)")
    parser.add_argument("--port", type=_port, help="for HTTP (default: 8000; 0: a free one)")
    parser.add_argument(
        "--cors-origin",
        action="append",
        metavar="ORIGIN",
        help="a web site whose pages may ask, such as https://app.example.org ('*': all); may be given several times",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="a name besides localhost by which requests may call it, such as that of a proxy in front of it",
    )
    parser.add_argument("--gateways", type=int, help="processes that take requests, at the same port (default: 1)")
    parser.add_argument("--name", help="of the deployment (default: the pipeline's)")
    parser.add_argument(
        "--replicas",
        action="append",
        default=[],
        metavar="STAGE=N",
        type=_pair,
        help="how many at first, instead of what the target says",
    )
    parser.add_argument(
        "--lease-s", type=float, help=f"how long a silent process is waited for (default: {DEFAULT_LEASE_S:g})"
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        help="numeric address for worlds and other hosts; the token that they need is in MULTIWORLD_TOKEN",
    )
    parser.add_argument("--control-port", type=_port, default=0, help="where other hosts join (default: a free one)")
    parser.add_argument("--hosts", type=int, default=1, help="wait for so many before replicas are placed (default: 1)")
    parser.add_argument("--log-dir", default="", help="a folder for one log file per process")
    parser.add_argument(
        "--trace",
        metavar="URL",
        help="of a collector of OpenTelemetry (OTLP over HTTP): trace requests, and send it the traces "
        f"(without it, {ENDPOINT_VARIABLE} says where those go that callers ask for)",
    )
    parser.add_argument(
        "--trace-ratio",
        type=float,
        help="share of the requests to trace beside those whose traceparent says so (default: 1 with --trace, else 0)",
    )
    return parser


def parsers() -> dict[str, CommandParser]:
    """Return the parsers of what follows ``serve`` in place of a target, by its name."""
    from ..serving.hosts.__main__ import command_parser as join_parser

    asked = {verb: _verb_parser(verb) for verb in VERBS}
    return {**asked, "watch": _watch_parser(), "join": join_parser("multiworld serve join")}


def _watch_parser() -> CommandParser:
    parser = CommandParser(prog="multiworld serve watch", description=ABOUT["watch"])
    parser.add_argument("--name", help="which deployment, if several run on this host")
    return parser


def _watch(arguments: Sequence[str]) -> int:
    options = _watch_parser().parse_args(arguments)
    from ..serving.view import watch

    try:
        record = find_deployment(options.name)
        watch(record.address, record.token)
    except DeploymentError as error:
        print(f"multiworld serve watch: {error}", file=sys.stderr)
        return 1
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= LONGEST_S:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected seconds: more than 0, and at most {LONGEST_S:,.0f}, got {text!r}")


def _pair(text: str) -> tuple[str, int]:
    stage, _, number = text.partition("=")
    if not stage or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"expected STAGE=N, got {text!r}")
    return stage, int(number)


# ---- of one that is up


def _verb_parser(verb: str) -> CommandParser:
    parser = CommandParser(prog=f"multiworld serve {verb}", description=ABOUT[verb])
    parser.add_argument("--name", help="which deployment, if several run on this host")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--timeout-s", type=_seconds, default=300.0, help="how long to wait for the end of it (300)")
    VERBS[verb](parser)
    return parser


def _asked(verb: str, arguments: Sequence[str]) -> int:
    parser = _verb_parser(verb)
    options = parser.parse_args(arguments)
    if verb in SHOWING:
        if options.last is not None and options.last < 0:
            parser.error(f"--last {options.last}: expected a number of {'lines' if verb == 'logs' else 'events'}")
        return SHOWING[verb](options)
    try:
        record = find_deployment(options.name)
        kind, expected = QUESTIONS[verb]
        answer = ask(record.address, record.token, _question(kind, options), expected, timeout_s=options.timeout_s + 5)
        if verb == "stop":
            _await_end(record, options.timeout_s)
    except DeploymentError as error:
        print(f"multiworld serve {verb}: {error}", file=sys.stderr)
        return 1
    told = answer.status if isinstance(answer, questions.StatusTold) else answer
    print(json.dumps(to_json(told)) if options.json else _text(told))
    return 0


def _await_end(record: DeploymentRecord, timeout_s: float) -> None:
    """Return when the deployment is no more, and its name and ports are free. Raises DeploymentError."""
    until = time.monotonic() + timeout_s
    while record.is_running:
        if time.monotonic() > until:
            raise DeploymentError(f"{record.name} stops, but has not ended within {timeout_s:g} s")
        time.sleep(END_POLL_S)


def _text(told: ControllerStatus | questions.ControllerAnswer) -> str:
    if isinstance(told, ControllerStatus):
        return _status_text(told)
    return "\n".join(f"{name}: {value}" for name, value in vars(told).items()) or "done"


def _status_text(status: ControllerStatus) -> str:
    lines = [f"{status.name}: " + ("ready" if status.ready else f"not ready: {status.missing}")]
    rows = [("replica", "stage", "state", "pid", "host", "version", "queue", "done", "ms each", "cpu", "memory")]
    members: tuple[ReplicaStatus | GatewayStatus, ...] = (*status.gateways, *status.replicas)
    rows += [
        (
            member.id,
            member.stage,
            member.state,
            str(member.pid),
            member.host,
            str(member.version),
            *_work(member.stats),
            "" if member.cpu is None else f"{100 * member.cpu:.0f} %",
            _memory(member),
        )
        for member in members
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _work(stats: ReplicaStatistics | GatewayStatistics | None) -> tuple[str, str, str]:
    """Return what waits, what is done, and what each took, as far as it was told."""
    if isinstance(stats, ReplicaStatistics):
        took = f"{1000 * stats.service_s:.2f}" if stats.service_s else ""
        return str(stats.queue), str(stats.done), took
    return ("", "", "") if stats is None else (str(stats.open), str(stats.answered), "")


def _memory(member: MemberStatus) -> str:
    """Return what it does not share with others, or all that it has, if that is all that is known."""
    size_bytes = member.pss_bytes or member.rss_bytes
    return "" if size_bytes is None else f"{size_bytes / 1e6:.0f} MB"


def _question(kind: type[questions.ControllerQuestion], options: argparse.Namespace) -> questions.ControllerQuestion:
    """Return the question whose fields are options of the command."""
    names = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in vars(options).items() if name in names})


def _resolved(path: str) -> str:
    return str(Path(path).resolve())


def _nothing(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def _scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", metavar="STAGE")
    parser.add_argument("replicas", metavar="N", type=int)
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="return at once")
    parser.add_argument(
        "--force",
        action="store_true",
        help="have more than max_replicas of the stage, or than its hosts are of use for",
    )


def _drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("replica", metavar="REPLICA")
    parser.add_argument("--scale-down", action="store_true", help="have one replica less after it")


def _update(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", metavar="STAGE")
    parser.add_argument("weights", metavar="FILE", type=_resolved, help="a state_dict, as torch.save wrote it")
    parser.add_argument("--parallel", action="store_true", help="start all new replicas at once")
    parser.add_argument("--settle-s", type=float, default=1.0, help="how long a new one must serve before an old ends")


def _tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", metavar="STAGE")
    parser.add_argument("--batch-max-size", type=int)
    parser.add_argument("--batch-max-wait-s", type=float)


def _events(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what happens from now on")
    parser.add_argument("-n", "--last", type=int, metavar="N", help="only the last N events that there are")


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "of", nargs="?", metavar="REPLICA|STAGE", help="of this one only, such as add-1, or of all replicas of a stage"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what they write from now on")
    parser.add_argument(
        "-n", "--last", type=int, default=LAST_LINES, metavar="N", help=f"lines of each (default: {LAST_LINES})"
    )


VERBS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "status": _nothing,
    "scale": _scale,
    "drain": _drain,
    "update": _update,
    "tune": _tune,
    "events": _events,
    "logs": _logs,
    "stop": _nothing,
}
"""What adds the options of each."""
SHOWING: dict[str, Callable[[argparse.Namespace], int]] = {"events": show_events, "logs": show_logs}
"""What asks more than once."""
QUESTIONS: dict[str, tuple[type[questions.ControllerQuestion], type[questions.ControllerAnswer]]] = {
    "status": (questions.StatusOf, questions.StatusTold),
    "scale": (questions.ScaleStage, questions.Done),
    "drain": (questions.DrainReplica, questions.Done),
    "update": (questions.UpdateStage, questions.Updated),
    "tune": (questions.TuneStage, questions.Done),
    "stop": (questions.StopAll, questions.Done),
}
"""What the others ask, and what answers it."""
