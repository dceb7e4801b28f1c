"""Read the command's name, and hand the rest of the line to that command's module. Imports no torch."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

from ..command_parser import CommandParser
from ..process.interruption import end_on_signals
from ..wire.endpoints.bracketed import bracketed
from .own_process import run_in_own_process

# Each is a module of this package with main(arguments) -> exit status, imported only when it is called: a command
# may need torch, rich or scikit-learn, and --help must work, and be quick, without any of them.
COMMANDS = {
    "demo": "serve real images through worlds whose members are killed and stopped meanwhile",
    "bench": "measure the channels beside raw torch.distributed on this machine",
    "doctor": "show versions, limits, and which channels work here (and why the others do not)",
    "run": "start workers on this host and watch them: what torchrun does, but only what failed is started again",
    "train": "run a training that survives failures, show how one stands, or explain one that ran",
    "status": "show how a running job is: its hosts, workers, worlds and restarts",
    "agents": "list the agents of a running job, one on each host",
    "events": "show what happened in a running job, and what happens",
    "logs": "show the last lines of a job's workers, on whichever host, and follow them",
    "drain": "let a host leave a running job without a failure",
    "kill": "end a worker or an agent as a fault would",
    "scale": "say how many hosts of an elastic job are to have ranks",
    "oobleck": "list the agents of a job, or let one go, by Oobleck's commands",
    "exec": "start ranks of any program, here or on other hosts over ssh, as mpiexec does",
    "serve": "serve a model in stages over HTTP, whose replicas come and go while requests flow",
    "nodes": "serve remote tensors to one master after another, or list nodes that do",
    "manifest": "print the objects that run a job on Kubernetes",
    "completion": "print what completes these commands in bash, zsh or fish",
}
HELP = "help"
OOBLECK = {"get_agent_list": "agents", "kill_agent": "kill"}
"""The same by the names that Oobleck's users know, behind ``--ip`` and ``--port``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for a line that makes no sense, 130 after Ctrl-C.

    Without arguments it is the command of this process: see ``own_process``.
    """
    if arguments is None:
        return run_in_own_process("multiworld", _run)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130


def _run(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    if options.command == HELP:
        return _help(parser, options.arguments)
    command = OOBLECK.get(options.command, options.command)
    if command not in COMMANDS:
        print(_unknown(options.command), file=sys.stderr)
        return 2
    endpoint = _endpoint(parser, options)
    if arguments is None:
        end_on_signals(f"multiworld {command}")
    run: Callable[[Sequence[str]], int] = importlib.import_module(f"multiworld.cli.{command}").main
    return run([*endpoint, *options.arguments])


def _help(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Print the help of the command that the words name, such as ``serve scale``; without words, of all commands."""
    named = [word for word in words if word not in ("-h", "--help")]
    if not named:
        parser.print_help()
        return 0
    return _run([*named, "--help"])


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = CommandParser(
        prog="multiworld",
        description="Process groups for PyTorch that fail one by one.",
        epilog=f"commands:\n{listing}\n\n'multiworld help COMMAND' shows a command's options.",
        usage="multiworld [--help] [--version] COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"multiworld {metadata.version('multiworld')}")
    parser.add_argument("--ip", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _endpoint(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Return ``--ip`` and ``--port`` as the commands take them."""
    if options.ip is None and options.port is None:
        return []
    if options.command not in OOBLECK or options.ip is None or options.port is None:
        parser.error(f"--ip and --port belong together, before {' or '.join(OOBLECK)}")
    return ["--endpoint", f"{bracketed(options.ip)}:{options.port}"]


def _unknown(command: str) -> str:
    close = difflib.get_close_matches(command, [*COMMANDS, HELP], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"multiworld: no command {command!r}: {hint} (see multiworld --help)"
