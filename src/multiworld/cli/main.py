"""Read the command's name, and hand the rest of the line to that command's module. Imports no torch."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

__all__ = ["COMMANDS", "main"]

# Each is a module of this package with main(arguments) -> exit status, imported only when it is called: a command
# may need torch, rich or scikit-learn, and --help must work, and be quick, without any of them.
COMMANDS = {
    "demo": "serve real images through worlds whose members are killed and stopped meanwhile",
    "bench": "measure the channels beside raw torch.distributed on this machine",
    "doctor": "show versions, limits, and which channels work here (and why the others do not)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for a line that makes no sense, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    if options.command not in COMMANDS:
        print(_unknown(options.command), file=sys.stderr)
        return 2
    run: Callable[[Sequence[str]], int] = importlib.import_module(f"multiworld.cli.{options.command}").main
    try:
        return run(options.arguments)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="multiworld",
        description="Process groups for PyTorch that fail one by one.",
        epilog=f"commands:\n{listing}\n\n'multiworld COMMAND --help' shows a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="multiworld [--help] [--version] COMMAND ...",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"multiworld {metadata.version('multiworld')}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _unknown(command: str) -> str:
    close = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"multiworld: no command {command!r}: {hint} (see multiworld --help)"
