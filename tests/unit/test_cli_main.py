"""The dispatch of the command line."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from multiworld.cli.main import COMMANDS, main


class _Command(ModuleType):
    """A command's module that notes how it was called."""

    def __init__(self, name: str, status: int | type[BaseException]) -> None:
        super().__init__(f"multiworld.cli.{name}")
        self.status = status
        self.calls: list[list[str]] = []

    def main(self, arguments: list[str]) -> int:
        self.calls.append(list(arguments))
        if isinstance(self.status, int):
            return self.status
        raise self.status


def _install(monkeypatch: pytest.MonkeyPatch, name: str, status: int | type[BaseException]) -> _Command:
    command = _Command(name, status)
    monkeypatch.setitem(sys.modules, command.__name__, command)
    return command


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert name in text
        assert " ".join(summary.split()) in " ".join(text.split())


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("multiworld 0.")


@pytest.mark.parametrize(
    ("typed", "hint"), [("demoo", "did you mean 'demo'?"), ("xyzzy", "there are demo, bench, doctor")]
)
def test_unknown_command_is_one_clear_line(typed: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert typed in captured.err
    assert hint in captured.err


def test_no_command_shows_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "commands:" in captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version", "x"], ["--seconds", "5", "--", "y"]])
def test_everything_after_the_command_is_the_commands(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = _install(monkeypatch, "demo", status=7)
    assert main(["demo", *arguments]) == 7
    assert command.calls == [arguments]


def test_interrupt_ends_a_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "bench", status=KeyboardInterrupt)
    assert main(["bench"]) == 130


@pytest.mark.parametrize(
    "line",
    [
        ["--help"],
        ["--version"],
        ["xyzzy"],
        ["doctor", "--help"],
        ["serve", "join", "--nope"],
        ["serve", "join", "nowhere"],
    ],
)
def test_nothing_but_a_command_imports_torch(line: list[str]) -> None:
    program = (
        "import sys\n"
        "from multiworld.cli.main import main\n"
        "try:\n"
        f"    main({line!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
