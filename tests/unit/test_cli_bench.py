"""The options of ``multiworld bench``, and what it does with a report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from multiworld.bench.options import Options
from multiworld.bench.report import Bound, Line, Report, Section, describe_machine
from multiworld.cli import bench
from multiworld.testing import WorkerFailedError

Note = Callable[[str], None]


class _Bench:
    """Stands in for ``run``: notes how it was called and returns one line."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value
        self.calls: list[tuple[Sequence[str], Options]] = []

    def __call__(self, names: Sequence[str], options: Options, note: Note) -> Report:
        self.calls.append((names, options))
        note("p2p: measuring")
        line = Line(name="descriptors", unit="", value=self.value, bound=Bound.at_most(2))
        section = Section(name="p2p", about="A test.", took_s=1.0, lines=[line])
        return Report(machine=describe_machine(), quick=options.quick, sections=[section])


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> _Bench:
    runner = _Bench()
    monkeypatch.setattr(bench, "run", runner)
    return runner


def test_without_a_name_everything_is_measured(runner: _Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 0
    assert runner.calls == [
        (["channels", "p2p", "collectives", "join", "detect", "scale"], Options(rounds=9, trials=30))
    ]
    captured = capsys.readouterr()
    assert "| descriptors" in captured.out
    assert captured.err == "p2p: measuring\n"


def test_options_reach_the_measurement(runner: _Bench) -> None:
    assert bench.main(["detect", "p2p", "--quick", "--trials", "200"]) == 0
    assert runner.calls == [(["detect", "p2p"], Options(quick=True, rounds=2, trials=200))]


@pytest.mark.parametrize(("value", "arguments", "status"), [(3, ["--check"], 1), (3, [], 0), (2, ["--check"], 0)])
def test_only_check_fails_a_run(value: float, arguments: list[str], status: int, runner: _Bench) -> None:
    runner.value = value
    assert bench.main(["p2p", *arguments]) == status


def test_json_on_standard_output_is_alone_there(runner: _Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["p2p", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["passes"] is True


def test_json_and_record_go_to_files(runner: _Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, record = tmp_path / "found.json", tmp_path / "RESULTS.md"
    assert bench.main(["p2p", "--json", str(found), "--record", str(record)]) == 0
    assert json.loads(found.read_text())["sections"][0]["name"] == "p2p"
    assert "| descriptors" in record.read_text()
    assert "| descriptors" in capsys.readouterr().out
    assert bench.main(["p2p", "--record", str(record)]) == 0
    assert record.read_text().count("| descriptors") == 2
    assert record.read_text().count("# Results of") == 1


@pytest.mark.parametrize("option", ["--json", "--record"])
def test_a_file_that_cannot_be_written_is_told_and_fails(
    option: str, runner: _Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["p2p", option, "/dev/full"]) == 1
    shown = capsys.readouterr()
    assert "| descriptors" in shown.out
    assert shown.err.endswith(f"multiworld bench: {option}: /dev/full cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["p2q"], "no benchmark 'p2q'"),
        (["p2p", "--rounds", "0"], "rounds=0"),
        (["p2p", "--json", "no/such/folder/x"], "there is no folder no/such/folder"),
        (["p2p", "--json", "."], "--json: . is a folder"),
    ],
)
def test_a_line_that_makes_no_sense_measures_nothing(
    arguments: list[str], reason: str, runner: _Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        bench.main(arguments)
    assert exit_.value.code == 2
    assert reason in capsys.readouterr().err
    assert runner.calls == []


def test_worker_that_fails_ends_the_run_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(names: Sequence[str], options: Options, note: Note) -> Report:
        raise WorkerFailedError("rank0", "ended", "details")

    monkeypatch.setattr(bench, "run", fail)
    assert bench.main(["p2p"]) == 2
    assert "worker 'rank0' ended" in capsys.readouterr().err


def test_help_imports_no_torch() -> None:
    program = (
        "import sys\n"
        "from multiworld.cli.main import main\n"
        "try:\n"
        "    main(['bench', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "scale" in done.stdout
