"""``multiworld train``: configuration files, the launcher's line that they mean, and the reports of a record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from multiworld.cli import train, train_report, train_status
from multiworld.cli.train_file import EXAMPLE, TrainFile, load, parse
from multiworld.elastic.job.trainings import Trainings
from multiworld.elastic.launch.parser import run_parser
from multiworld.serving.config.problems import ConfigError
from multiworld.training.settings import SETTINGS_VARIABLE, settings_of
from multiworld.training.view.recorder import Recorder
from tests.unit.elastic.control.test_questions import job_status, three
from tests.unit.training.view.runs import Run
from tests.unit.training.view.test_teller import told


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse("/srv/training.yaml", text)
    return caught.value.problems


def test_the_example_of_the_help_is_a_file() -> None:
    read = parse("/srv/training.yaml", EXAMPLE)
    settings = settings_of(read.environment)

    assert read.program == ("/srv/train.py",)
    assert read.arguments == ("--epochs", "3")
    assert read.options == ("--nproc-per-node=4", "--nnodes=1:4")
    assert read.environment["OMP_NUM_THREADS"] == "1"
    assert settings.min_replicas == 2
    assert settings.record == "/srv/records"
    assert settings.checkpoint is not None
    assert (settings.checkpoint.dir, settings.checkpoint.every_steps, settings.checkpoint.keep) == (
        "/srv/checkpoints",
        100,
        3,
    )


def test_the_file_of_the_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs/seeing-a-training.md").read_text()
    read = parse("/srv/training.yaml", page.partition('title="training.yaml"\n')[2].partition("```")[0])

    assert read.options == ("--nproc-per-node=4", "--nnodes=1:4", "--max-restarts=10/10m", "--log-dir=/srv/logs")
    assert settings_of(read.environment).min_replicas == 2


def test_every_option_of_a_file_is_one_of_the_launcher() -> None:
    said = {
        "module": "package.train",
        "nproc_per_node": "gpu",
        "nnodes": 2,
        "spares": 1,
        "restart": "world",
        "max_restarts": "3/10m",
        "job": "j",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "host0:29400",
        "lease_s": 5,
        "progress_timeout_s": 60.5,
        "page": "127.0.0.1:0",
        "log_dir": "logs",
    }
    read = parse("/srv/a.json", json.dumps(said))
    options = run_parser().parse_args([*read.options, *read.program])

    assert (options.restart.value, options.rdzv_id, options.log_dir, options.module) == (
        "world",
        "j",
        "/srv/logs",
        True,
    )
    assert (options.nnodes, options.lease_s, options.progress_timeout) == ("2", 5.0, 60.5)
    assert read.environment == {}


def test_a_range_of_hosts_is_no_number_to_the_base_of_sixty() -> None:
    assert parse("a.yaml", "program: a.py\nnnodes: 1:4\n").options == ("--nnodes=1:4",)
    assert parse("a.yaml", "{program: a.py, nnodes: '2:8+1'}").options == ("--nnodes=2:8+1",)
    assert parse("a.yaml", "{program: a.py, nnodes: 64}").options == ("--nnodes=64",)


def test_all_that_is_wrong_is_told_with_line_and_key() -> None:
    text = "program: a.py\nnproc_per_node: [1]\ncheckpoint:\n  every_steps: 0\nenviroment: {A: b}\nmin_replicas: 0\n"

    assert problems(text) == (
        "2: nproc_per_node: expected a whole number or text, got a list",
        "3: checkpoint.dir: is missing: expected text",
        "3: checkpoint: every_steps is 0: at least 1 is needed",
        "5: enviroment: unknown key, did you mean 'environment'?",
        "6: min_replicas: is 0: at least 1 is needed",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nproc_per_node: 4", "give either program"),
        ("{program: a.py, module: b}", "give either program"),
        ("{program: a.py, arguments: [[1]]}", "arguments[0]: expected text or a number"),
        ("{program: a.py, environment: {A: true}}", "environment.A: is true: write text in quotation marks"),
        ("{program: a.py, environment: {'A=B': 1}}", "'A=B' is no name of a variable"),
        ("program: a.py\nprogram: b.py", "stands here a second time"),
        ("program: [", "no YAML"),
        ("", "the file is empty"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, told: str) -> None:
    assert told in "\n".join(problems(text))


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("program: train.py\n")
    with pytest.raises(ConfigError, match="there is no file"):
        load(str(tmp_path / "t.yaml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "none.yaml"))
    (tmp_path / "train.py").write_text("")
    assert load(str(tmp_path / "t.yaml")) == TrainFile(program=(str(tmp_path / "train.py"),))


def test_options_of_the_line_override_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PET_RESTART", raising=False)
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "t.yaml"
    file.write_text("program: train.py\narguments: [--a, 1]\nnproc_per_node: 4\nmin_replicas: 2\n")
    line, variables = train.command_line(["--nproc-per-node", "2", str(file), "--b", "--nnodes=7"])

    assert line == [
        "--restart=worker",
        "--nproc-per-node=4",
        "--nproc-per-node",
        "2",
        str(tmp_path / "train.py"),
        "--a",
        "1",
        "--b",
        "--nnodes=7",
    ]
    assert list(variables) == [SETTINGS_VARIABLE]
    assert run_parser().parse_args(line).nproc_per_node == "2"


def test_a_program_is_run_with_the_defaults_of_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PET_RESTART", raising=False)

    assert train.command_line(["train.py", "config.yaml"]) == (
        ["--restart=worker", "train.py", "config.yaml"],
        {},
    )
    monkeypatch.setenv("PET_RESTART", "all")
    assert train.command_line(["train.py"]) == (["train.py"], {})


def test_a_file_that_is_refused_is_a_bad_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("progam: a.py\n")

    assert train.main([str(file)]) == 2
    assert f"{file}:1: progam: unknown key, did you mean 'program'?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--help"], ["report", "--help"]])
def test_help_is_short_and_says_what_to_do(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main(arguments)

    assert ended.value.code == 0
    assert "Exit status" in capsys.readouterr().out


def record(folder: Path, run: Run) -> None:
    for member, its in run.events.items():
        recorder = Recorder(folder, rank=its[0].rank, member=member)
        recorder.take(its)
        recorder.close()


def test_a_record_is_explained_as_text_json_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "record", Run().steps(10).lose(1).steps(5).end())
    svg = tmp_path / "picture.svg"

    assert train_report.main([str(tmp_path / "record"), "--svg", str(svg)]) == 0
    assert "step 10, rank 1 was lost" in capsys.readouterr().out
    assert svg.read_text().startswith("<svg")
    assert train_report.main([str(tmp_path / "record"), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert said["account"]["num_steps"] == 16
    assert train_report.main([str(tmp_path / "record"), "--svg", "-"]) == 0
    assert capsys.readouterr().out.startswith("<svg")


def test_no_record_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, Run().steps(1))

    assert train_report.main([str(tmp_path / "none")]) == 1
    assert train_report.main([str(tmp_path), "--name", "other"]) == 1
    assert train_report.main([str(tmp_path), "--svg", str(tmp_path / "none" / "a.svg")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "there is no such folder" in lines[0]
    assert "there is no training 'other'" in lines[1]
    assert "cannot be written" in lines[2]


def test_the_status_of_a_training_is_shown() -> None:
    trainings = Trainings()
    for news in told(Run(total=100).steps(10).lose(1).steps(20)):
        trainings.take(news, at=1000.0)
    text = train_status.render(replace(job_status(three()), trainings=trainings.status()))

    assert text.startswith("training gpt: step 31 of 100, at ")
    assert "2 replicas, generation 2" in text
    assert "1 failure; the last ones:" in text
    assert "step 10: rank 1 was lost (PeerDiedError: its socket closed); 185 ms until the next commit" in text
