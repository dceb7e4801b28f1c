"""The commands of the page about pipelines print what it shows, and draw its pictures."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from multiworld.cli import train
from multiworld.training.planning.profile_file import profile_text, read_profile
from multiworld.training.simulating.trace import read_trace
from tests.examples.test_docs import ROOT, code_block

PAGE = "docs/pipelines.md"


def shown(title: str) -> tuple[list[str], str]:
    """Return the arguments after ``multiworld train`` of a block, and what it shows below the command."""
    line, _, output = code_block(PAGE, f'title="{title}"').partition("\n")
    words = shlex.split(line)
    assert words[:3] == ["$", "multiworld", "train"]
    return words[3:], output


@pytest.mark.parametrize(
    "title",
    ["A plan", "A loss every hour, for two days", "A loss every 10 minutes, and spot instances of GCP"],
)
def test_a_command_prints_and_draws_what_the_page_shows(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, output = shown(title)
    assert train.main(arguments) == 0
    assert capsys.readouterr().out == output
    for picture in tmp_path.iterdir():
        assert picture.read_text() == (ROOT / "docs/assets" / picture.name).read_text()


def test_what_cannot_be_planned_is_told_as_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    arguments, output = shown("Too few nodes")
    assert train.main(arguments) == 2
    assert capsys.readouterr().err == output


def test_the_profile_of_the_page_is_one() -> None:
    stored = read_profile("page", code_block(PAGE, 'title="A profile of two layers"'))
    assert stored.key is None
    assert stored.profile.num_layers == 2
    assert read_profile("again", profile_text(stored.profile)).profile == stored.profile


def test_the_trace_of_the_page_is_one() -> None:
    trace = read_trace("page", code_block(PAGE, 'title="trace.csv"'))
    assert (trace.nodes_at_start, trace.num_losses, trace.num_joins) == (3, 1, 1)
