"""``multiworld nodes``: serve remote tensors at an address, or list the nodes that do."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..command_parser import CommandParser
from ..elastic.control.client import ControlError
from ..elastic.control.messages import StatusOf
from ..elastic.job.remote import RemoteStatus
from ..elastic.job.status import JobStatus
from ..errors import MultiworldError
from ..wire.endpoints.addresses import is_address
from ..wire.endpoints.bracketed import bracketed
from ..wire.endpoints.ports import NODES_PORT
from ..wire.endpoints.token import check_token
from ..world.launcher.launched import token_of_environment
from .cluster import clock, cluster_parser, conversation, table, told

if TYPE_CHECKING:
    from ..remote.connecting.listing import Listed
    from ..remote.served import NodeState

NODES, SERVE = "multiworld nodes", "multiworld nodes serve"
AT_ADDRESSES = f"Nodes at addresses are listed by {NODES} tcp://HOST:PORT,..."
LOOPBACK = ("127.0.0.1", "::1", "localhost")
EPILOG = """\
With addresses, the nodes there are asked: MULTIWORLD_TOKEN must be theirs. Without, a running job is asked: the only
one of this host, or that of --job or --endpoint. Over the network MULTIWORLD_TOKEN must be the job's. Its nodes are
shown as their master told the launcher last. Listing disturbs no master; the state is a second or two old.

'multiworld nodes serve' starts a node here: see its --help.

Exit status: 0, 1 if a node or the job cannot be reached, or the job has no nodes, 2 for a command that makes no
sense."""
EPILOG_OF_SERVE = """\
A program on another host gets it with remote.connect("tcp://HOST:PORT"), with the same MULTIWORLD_TOKEN, which is
needed on every address but those of loopback. The node serves one master at a time, and the next when that one is done
or lost; each finds it without tensors. It executes PyTorch's own operators, and those that are allowed here. Functions
that are declared here (--call package.module:function) can be called by masters, and no others.

Exit status: 128 + N after signal N, 1 if the port is taken, 2 for a command that makes no sense."""


def main(arguments: Sequence[str]) -> int:
    """Serve, or print the list; see the epilogues for what is returned."""
    if arguments and arguments[0] == "serve":
        return _serve(arguments[1:])
    options = command_parser().parse_args(arguments)
    if options.addresses is None:
        return told("nodes", lambda: _list_job(options))
    if options.endpoint is not None or options.job is not None:
        print(f"{NODES}: --endpoint and --job are for a job of the launcher: leave the addresses out", file=sys.stderr)
        return 2
    from ..remote.connecting.listing import nodes_at  # which needs torch

    try:
        listed = nodes_at(options.addresses)
    except ValueError as error:
        print(f"{NODES}: {error}", file=sys.stderr)
        return 2
    print(json.dumps([asdict(each) for each in listed], indent=2) if options.json else render(listed))
    for each in listed:
        if each.problem:
            print(f"{NODES}: {each.address}: {each.problem}", file=sys.stderr)
    return 1 if any(each.problem for each in listed) else 0


def render(listed: Sequence[Listed]) -> str:
    """Return the table for people."""
    header = ("NODE", "ADDRESS", "HOST", "PID", "TORCH", "DEVICES", "TENSORS", "MEMORY", "MASTER")
    return table(header, [(each.number, each.address, *_cells(each.state), each.master or "-") for each in listed])


def _cells(state: NodeState | None) -> tuple[object, ...]:
    if state is None:
        return ("-",) * 6
    memory = f"{state.memory_bytes / 1e6:.0f} MB"
    return (state.host, state.pid, state.torch, ",".join(state.devices), state.num_tensors, memory)


def command_parser() -> CommandParser:
    parser = cluster_parser("nodes", "List nodes of remote tensors, or serve as one.")
    parser.epilog = EPILOG
    parser.add_argument(
        "addresses",
        nargs="?",
        metavar="tcp://HOST:PORT,...",
        help="where the nodes are, as for remote.connect(); default: those of a job of the launcher",
    )
    return parser


# ---- nodes of the launcher


def _list_job(options: argparse.Namespace) -> None:
    try:
        with conversation(options) as talk:
            status = talk.ask(StatusOf(), JobStatus)
    except ControlError as error:
        if options.endpoint is not None or options.job is not None:
            raise
        raise ControlError(f"{error}. {AT_ADDRESSES}") from None
    if status.remote is None:
        raise ControlError(f"no program of the job {status.job} has nodes of remote tensors. {AT_ADDRESSES}")
    print(json.dumps(asdict(status.remote), indent=2) if options.json else render_job(status.remote))


def render_job(remote: RemoteStatus) -> str:
    """Return the table for people, and below it which lines wait."""
    header = ("NODE", "HOST", "PID", "GENERATION", "COMMANDS", "SENT", "FETCHED", "TENSORS", "MEMORY", "STATE")
    rows = [
        (
            node.number,
            node.host or "-",
            node.pid or "-",
            node.generation if node.generation >= 0 else "-",
            node.num_commands,
            _megabytes(node.sent_bytes),
            _megabytes(node.fetched_bytes),
            "-" if node.num_tensors is None else node.num_tensors,
            _megabytes(node.memory_bytes),
            node.lost or ("ended" if remote.ended else "alive"),
        )
        for node in remote.nodes
    ]
    lines = [
        f"  {line.waited_s:.3f} s, {line.num_waits} times, for {line.operations}: {line.line}" for line in remote.lines
    ]
    head = f"master: rank {remote.rank}, {'ended' if remote.ended else 'told'} at {clock(remote.at)}"
    return "\n".join([head, table(header, rows), *(["lines that wait most:", *lines] if lines else [])])


def _megabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:.1f} MB"


# ---- serve


def _serve(arguments: Sequence[str]) -> int:
    options = parser_of_serve().parse_args(arguments)
    try:
        if options.host not in LOOPBACK and not (is_address(options.host) and options.host.startswith("127.")):
            check_token(token_of_environment())
        for module in options.imports:
            importlib.import_module(module)
    except (ValueError, ImportError) as error:
        print(f"{SERVE}: {error}", file=sys.stderr)
        return 2
    from ..remote.node.standing import serve_at  # which needs torch
    from ..remote.protocol.calls import declared_by_options

    try:
        serve_at(
            f"tcp://{bracketed(options.host)}:{options.port}",
            _tell_ready,
            allow=frozenset(options.allow),
            calls=declared_by_options(options.call, options.replayable),
            backend=options.backend,
        )
    except ValueError as error:
        print(f"{SERVE}: {error}", file=sys.stderr)
        return 2
    except MultiworldError as error:
        print(f"{SERVE}: {error}", file=sys.stderr)
        return 1
    return 0


def _tell_ready(url: str, state: NodeState) -> None:
    print(f"{SERVE}: at {url}, torch {state.torch}, {', '.join(state.devices)}", flush=True)


def parser_of_serve() -> CommandParser:
    parser = CommandParser(
        prog=SERVE, description="Serve remote tensors to one master after the other.", epilog=EPILOG_OF_SERVE
    )
    parser.add_argument(
        "--port", type=int, default=NODES_PORT, help=f"where masters come (default: {NODES_PORT}; 0: a free one)"
    )
    parser.add_argument(
        "--host",
        default=LOOPBACK[0],
        help="the address of this host that masters reach (default: 127.0.0.1, for masters on this host only)",
    )
    parser.add_argument("--backend", default="auto", help="the channel of large tensors, the same as the masters'")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="NAMESPACE", help="execute operators of this namespace, too"
    )
    parser.add_argument(
        "--call", action="append", default=[], metavar="MODULE:FUNCTION", help="a function that masters may have called"
    )
    parser.add_argument(
        "--replayable",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="as --call; called again, it returns the same",
    )
    parser.add_argument(
        "--import", action="append", default=[], metavar="MODULE", dest="imports", help="a module to import first"
    )
    return parser


def parsers() -> dict[str, CommandParser]:
    """Return the parser of each verb."""
    return {"serve": parser_of_serve()}
