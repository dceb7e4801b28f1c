"""The parser of every command: help within the terminal's width, and one line about what makes no sense."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NoReturn

__all__ = ["CommandParser", "close_option"]

COLUMN = re.compile(r"\s*\S.*?\s{2,}(?=\S)")  # of a table's row, up to what explains it
SAID_OTHERWISE = re.compile(r"the following arguments are required|expected .* argument|unrecognized arguments")


class _Help(argparse.HelpFormatter):
    """Paragraphs are filled; an indented line (a row of a table, an example) stays one, and goes on indented."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in _filled(text, width - len(indent)))

    def _format_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None) -> str:
        text = super()._format_usage(usage, actions, groups, prefix)
        lines = text.rstrip("\n").split("\n")
        return "\n".join(part for line in lines for part in _wrapped(line, self._width, " " * 7)) + "\n\n"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Name the value once, and an option that is spelt with ``_`` too only once."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = [name for name in action.option_strings if not _is_other_spelling(name, action.option_strings)]
        if action.nargs == 0:
            return ", ".join(names)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(names)} {value}"


class CommandParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that takes no abbreviations unless it is told to."""

    missing = ""
    """What to say if a required argument is missing; empty: argparse's own words."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False, **settings})
        self._given: Sequence[str] = ()

    def parse_args(  # type: ignore[override]  # its overloads are for other classes of namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._given = self.own_arguments(sys.argv[1:] if args is None else list(args))
        return super().parse_known_args(args, namespace)

    def own_arguments(self, given: Sequence[str]) -> Sequence[str]:
        """Return those that are this parser's own, and no program's that stands behind them."""
        return given[: given.index("--")] if "--" in given else given

    def error(self, message: str) -> NoReturn:
        if SAID_OTHERWISE.search(message):  # an option that nobody knows is why an argument is missing, or too much
            hints = [hint for each in self._given if (hint := self.hint(each)) is not None]
            if hints:
                message = "; ".join(hints)
            elif self.missing and message.startswith("the following arguments are required"):
                message = self.missing
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def hint(self, given: str) -> str | None:
        """Return what is to be said of an argument that looks like an option, but is none."""
        name = given.partition("=")[0]
        if not name.startswith("--") or name == "--" or name in self._option_string_actions:
            return None
        close = close_option(name, self._option_string_actions)
        return f"unrecognized arguments: {given}" + (f", did you mean {close!r}?" if close else "")


def close_option(name: str, options: Iterable[str]) -> str | None:
    """Return the option that was probably meant, as it is spelt in help; None if nothing is close."""
    known = list(options)
    shown = [each for each in known if not _is_other_spelling(each, known) and len(each) > 2]
    wanted = "--" + name.lstrip("-").replace("_", "-")
    begun = [each for each in shown if each.startswith(wanted)]
    return (begun if len(begun) == 1 else [*difflib.get_close_matches(wanted, shown, n=1), None])[0]


def _is_other_spelling(name: str, names: Sequence[str]) -> bool:
    """Whether it is there with hyphens, too: torchrun takes both."""
    hyphened = "--" + name[2:].replace("_", "-")
    return name.startswith("--") and "_" in name and hyphened in names


def _filled(text: str, width: int) -> Iterator[str]:
    for is_prose, lines in groupby(text.strip("\n").split("\n"), key=_is_prose):
        if is_prose:
            yield from _wrapped(" ".join(lines), width, "")
        else:
            for line in lines:
                indent = len(line) - len(line.lstrip())
                column = COLUMN.match(line)
                yield from _wrapped(line, width, " " * (column.end() if column is not None else indent + 4))


def _is_prose(line: str) -> bool:
    return bool(line) and not line[0].isspace()


def _wrapped(line: str, width: int, indent: str) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False, drop_whitespace=True
    )
