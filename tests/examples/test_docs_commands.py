"""Command lines in the documentation are accepted by the parsers of their commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from multiworld.cli.main import COMMANDS, OOBLECK, main
from multiworld.cli.serve import VERBS
from multiworld.command_parser import CommandParser
from tests.examples.test_docs import PAGES, ROOT

pytestmark = pytest.mark.usefixtures("no_leaks")

OF_SERVE = {*VERBS, "watch", "join"}
COMMAND = re.compile(r"\bmultiworld +(.*)")


class Accepted(Exception):
    """The parser of the command took the line."""


def lines(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each line of a block that calls ``multiworld``, up to a pipe."""
    for block in re.finditer(r"^```(?:console|sh)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block[1].replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$(", "("), comments="#" in line)
            for start, word in enumerate(words):
                if word == "multiworld" and (start == 0 or words[start - 1] in ("$", "host1$", "host2$", "srun")):
                    yield _until_pipe(words[start + 1 :])


def _until_pipe(words: Sequence[str]) -> list[str]:
    return list(words[: words.index("|")] if "|" in words else words)


def accept(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]) -> None:
    """Run a command up to where its own parser has taken the line; a line that it refuses ends in SystemExit."""
    parse = CommandParser.parse_args

    def parse_only(self: CommandParser, *given: Any, **named: Any) -> Any:
        parsed = parse(self, *given, **named)
        if self.prog == "multiworld":
            return parsed
        raise Accepted

    with monkeypatch.context() as patched:
        patched.setattr(CommandParser, "parse_args", parse_only)
        with pytest.raises(Accepted):
            main(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_parsers_take_every_line_of_a_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in lines(page):
        accept(monkeypatch, arguments)


def test_lines_are_found() -> None:
    found = [arguments for page in PAGES for arguments in lines(page)]
    assert ["serve", "scale", "scale", "3"] in found
    assert ["serve", "join", "10.0.0.1:7000"] in found
    assert {arguments[0] for arguments in found} >= {"run", "serve", "exec", "manifest", "doctor"}


@pytest.mark.parametrize(
    "line", ["run --no-such-option a.py", "serve scale", "serve app.py --nothing", "manifest k8s --name a"]
)
def test_a_line_that_a_command_refuses_is_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        accept(monkeypatch, line.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    for words in re.findall(r"`multiworld ([^`]*)`", page.read_text()):
        for command in re.split(r"[\\|]+", words.split()[0]):
            assert command in {*COMMANDS, *OOBLECK, "help"} or command.startswith(("-", "…", "COMMAND")), words
        if words.startswith("serve ") and re.match(r"[a-z]+$", words.split()[1]):
            assert words.split()[1] in OF_SERVE, words


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("## Commands") : readme.index("## Channels")]
    assert [name for name in (*COMMANDS, *OF_SERVE) if not re.search(rf"\b{name}\b", table)] == []
