"""A suite of benchmarks keeps what it has measured, whatever comes of the rest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import suite
from benchmarks.suite import Suite
from multiworld.bench.report import Bound, Line


def _good(options: argparse.Namespace) -> list[Line]:
    return [Line(name="speed", unit="/s", value=7.0, bound=Bound.at_most(9.0))]


def _slow(options: argparse.Namespace) -> list[Line]:
    return [Line(name="delay", unit="s", value=7.0, bound=Bound.at_most(1.0))]


def _interrupted(options: argparse.Namespace) -> list[Line]:
    raise KeyboardInterrupt


def _broken(options: argparse.Namespace) -> list[Line]:
    raise OSError("no such thing")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(suite, "RESULTS", tmp_path / "RESULTS.md")
    return tmp_path


def run(results: Path, *lines: str) -> int:
    known = {"good": _good, "slow": _slow, "interrupted": _interrupted, "broken": _broken}
    a_suite = Suite(name="any", lines={name: (f"about {name}", known[name]) for name in lines}, reference="nothing")
    options = a_suite.parser("").parse_args(["--record", "--json", str(results / "out.json")])
    return a_suite.run(options)


def test_what_was_measured_before_an_interrupt_is_kept(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(results, "good", "interrupted")
    assert "| speed " in (results / "RESULTS.md").read_text()
    sections = json.loads((results / "out.json").read_text())["sections"]
    assert [section["lines"][0]["value"] for section in sections] == [7.0, None], "what was not reached is told of"
    assert "Not measured: 1" in (results / "RESULTS.md").read_text()
    assert "| speed " in capsys.readouterr().out, "each table is shown as soon as it is there"


def test_nothing_is_kept_of_a_run_that_measured_nothing(results: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(results, "interrupted")
    assert not (results / "RESULTS.md").exists()


@pytest.mark.parametrize(("lines", "status"), [(["good"], 0), (["good", "slow"], 1), (["broken", "good"], 1)])
def test_a_missed_bound_and_a_line_without_a_figure_fail_the_run(results: Path, lines: list[str], status: int) -> None:
    assert run(results, *lines) == status
    assert "| speed " in (results / "RESULTS.md").read_text()
