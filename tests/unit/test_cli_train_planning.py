"""``multiworld train plan`` and ``simulate``: what they print, and what they say of input that makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multiworld.cli import train
from multiworld.training.planning.profile_file import profile_text
from multiworld.training.planning.uniform import uniform_profile

LAYERS = ["--layers", "12", "--layer-mib", "64", "--memory-gib", "2"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert train.main(arguments) == 0
    return capsys.readouterr().out


def test_a_plan_is_told_as_text_json_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "plan.svg"
    text = said(capsys, "plan", *LAYERS, "--nodes", "6", "--svg", str(svg))
    assert "2 nodes hold the model; 4 nodes survive the loss of any 1" in text
    assert svg.read_text().startswith("<svg")
    found = json.loads(said(capsys, "plan", *LAYERS, "--nodes", "6", "--json"))
    assert (found["smallest"], found["num_micro_batches"]) == (2, 24)
    assert [each["num_nodes"] for each in found["pipelines"]] == [2, 3, 4, 5, 6]
    assert sum(each["num_micro_batches"] for each in found["pipelines"][-1]["pipelines"]) == 24
    assert sum(each["num_nodes"] for each in found["pipelines"][-1]["pipelines"]) == 6
    assert said(capsys, "plan", *LAYERS, "--nodes", "6", "--svg", "-").startswith("<svg")


def test_a_plan_is_made_of_a_profile_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    file.write_text(profile_text(uniform_profile(5, micro_batch=4)))
    found = json.loads(said(capsys, "plan", str(file), "--nodes", "3", "--global-batch", "40", "--json"))
    assert (found["num_layers"], found["micro_batch"], found["num_micro_batches"]) == (5, 4, 10)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("plan --nodes 4", "which model? Give a profile, or --layers L for L equal layers"),
        ("plan --layers 4", "--nodes is missing"),
        ("plan none.json --nodes 4", "none.json cannot be read: No such file or directory"),
        ("plan FILE --layers 4 --nodes 4", "give either a profile (FILE) or --layers 4"),
        ("plan FILE --layer-ms 4 --nodes 4", "--layer-ms needs --layers"),
        ("plan FILE --micro-batch 2 --nodes 4", "FILE was measured with micro-batches of 4;"),
        ("plan FILE --global-batch 10 --nodes 4", "--global-batch 10 is no multiple of the micro-batch, 4: take 8"),
        ("plan BAD --nodes 4", "BAD: line 1, column 1: this is not JSON"),
        ("plan --layers 9 --nodes 2 --layer-mib 64 --memory-gib 1", "3 of these nodes would do"),
        ("plan --layers 8 --nodes 4 --global-batch 1", "2 pipelines need at least one each"),
        ("plan --layers 8 --nodes 2 --layer-mib 640 --memory-gib 1", "no number of nodes would do"),
        ("plan --layers 8 --nodes 2 --svg none/a.svg", "none/a.svg cannot be written: No such file or directory"),
        ("simulate", "which failures? Give --trace FILE, or --every TIME (or --published)"),
        ("simulate --layers 4 --every 1h", "--nodes is missing"),
        ("simulate --every 1h --nodes 4", "which model? Give a profile, or --layers L"),
        ("simulate --layers 4 --trace none.csv", "none.csv cannot be read: No such file or directory"),
        ("simulate --layers 4 --trace BAD", "BAD: line 1: expected TIME,join|loss,NODE, found 'model'"),
        ("simulate --layers 4 --trace BAD --nodes 3", "--nodes belongs to --every"),
        ("simulate --layers 4 --trace BAD --every 1h", "which failures? Give --trace FILE, or --every TIME"),
        ("simulate --layers 4 --nodes 4 --every 1h --only GCP", "--only chooses rows of --published"),
        ("simulate --published --layers 4", "--published has models and nodes of its own"),
        ("simulate --published --only GPT", "--only 'GPT': expected one of 6 h, 3 h, 1 h"),
        ("simulate --published --svg none/a.svg --only GCP", "none/a.svg cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text(profile_text(uniform_profile(5, micro_batch=4)))
    (tmp_path / "BAD").write_text("model")
    assert train.main(line.split()) == 2
    (only,) = capsys.readouterr().err.splitlines()
    assert only.startswith(f"multiworld train {line.split()[0]}: ")
    assert told in only


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("plan --layers 0 --nodes 4", "argument --layers: '0': expected a whole number, at least 1"),
        ("plan --layers 4 --nodes four", "argument --nodes: 'four': expected a whole number, at least 1"),
        ("plan --layers 4 --nodes 4 --tolerate -1", "argument --tolerate: '-1': expected a whole number, at least 0"),
        ("plan --layers 4 --nodes 4 --memory-gib 0", "argument --memory-gib: '0': expected a number above 0"),
        (
            "simulate --layers 4 --every soon",
            "argument --every: 'soon': expected a time such as 90s, 10min, 1.5h or 2d",
        ),
        ("simulate --layers 4 --gbit-s 0", "argument --gbit-s: '0': expected a number above 0"),
        ("plan --layers 4 --nodes 4 --memory 3", "unrecognized arguments: --memory, did you mean '--memory-gib'?"),
    ],
)
def test_a_bad_option_is_a_bad_line(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main(line.split())
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_the_published_setting_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "gcp.svg"
    text = said(capsys, "simulate", "--published", "--only", "GCP", "--only", "BERT-large", "--svg", str(svg))
    assert "multiworld beside Oobleck here: 1 row, behind in none" in text
    assert svg.read_text().count("<polyline") == 3
    (row,) = json.loads(said(capsys, "simulate", "--published", "--only", "GCP", "--only", "GPT-2", "--json"))
    assert (row["trace"], row["model"]) == ("GCP", "GPT-2")


def test_a_drawn_trace_is_replayed_over_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "drawn.svg"
    line = ["simulate", *LAYERS, "--nodes", "6", "--every", "10min", "--for", "2h", "--back-after", "0.5h"]
    text = said(capsys, *line, "--seed", "3", "--svg", str(svg))
    head, _, header, *rows = text.splitlines()
    assert head.startswith("a loss every 10 min: 6 nodes, ")
    assert [row.split("  ")[0] for row in rows] == [
        "multiworld",
        "only re-instantiate",
        "only borrow",
        "only merge",
        "only reroute",
        "checkpoint and restart",
    ]
    assert "effective" in header
    assert svg.read_text().count('class="s') >= 6
    assert said(capsys, *line, "--seed", "3") == text
    found = json.loads(said(capsys, *line, "--json"))
    assert [each["system"] for each in found][::5] == ["multiworld", "checkpoint and restart"]


def test_a_trace_in_a_file_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("".join(f"0,add,n{number}\n" for number in range(4)) + "60000,remove,n2\n3600000,add,n5\n")
    text = said(capsys, "simulate", *LAYERS, "--trace", str(file), "--trace-unit", "ms")
    assert text.startswith(f"{file}: 4 nodes, 1 loss, 1 join in 60 min")


@pytest.mark.parametrize("verb", ["plan", "simulate"])
def test_the_help_says_what_to_do(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main([verb, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert "Exit status" in out
