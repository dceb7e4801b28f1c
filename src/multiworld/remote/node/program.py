"""The program of a node: ``python -m multiworld.remote.node.program --number 1 --store tcp://127.0.0.1:29500``."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence

from ...errors import MultiworldError
from ...world.manager import WorldManager
from ..protocol.calls import declared_by_options
from .operators import ALLOWED
from .serving import NodeOptions, serve_node


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the master is done, or lost. Return the exit status."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the master's, which tells its nodes
    sys.path.extend(each for each in options.path if each not in sys.path)
    for module in options.imports:
        importlib.import_module(module)
    node = NodeOptions(
        number=options.number,
        store=options.store,
        backend=options.backend,
        allowed=ALLOWED | frozenset(options.allow),
        calls=declared_by_options(options.call, options.replayable),
    )
    try:
        with WorldManager(job=options.job) as manager, WorldManager(job=options.job) as bulk_manager:
            serve_node(node, manager, bulk_manager)
    except MultiworldError as error:
        print(f"multiworld: node {node.number}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m multiworld.remote.node.program", description=__doc__)
    parser.add_argument("--number", type=int, required=True, help="the number of this node")
    parser.add_argument("--store", required=True, metavar="URL", help="where its worlds form")
    parser.add_argument("--backend", default="auto", help="the channel of large tensors")
    parser.add_argument("--job", default="remote", help="the name that master and nodes share")
    parser.add_argument("--allow", action="append", default=[], metavar="NAMESPACE", help="operators to execute, too")
    parser.add_argument("--call", action="append", default=[], metavar="MODULE:FUNCTION", help="what it calls, too")
    parser.add_argument("--replayable", action="append", default=[], metavar="MODULE:FUNCTION", help="as --call")
    parser.add_argument("--path", action="append", default=[], metavar="DIR", help="where else modules are")
    parser.add_argument(
        "--import",
        action="append",
        default=[],
        metavar="MODULE",
        dest="imports",
        help="a module that registers operators",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
