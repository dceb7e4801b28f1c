"""A training in which the rank that shows it is killed: status, metrics, page, events, terminal and report agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from multiworld.cli import events, train_report, train_status
from tests.unit.exposition import checked_samples

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("training_view_program.py")
TOTAL, KILL_AT, TIMEOUT_S = 400, 20, 50


def status_of(job: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert train_status.main(["--job", job, "--json"]) == 0
    (status,) = json.loads(capsys.readouterr().out)
    found: dict[str, Any] = status
    return found


@pytest.mark.timeout(120)
def test_a_training_is_shown_while_it_runs_and_explained_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = f"seen-{os.getpid()}"
    file = tmp_path / "training.json"
    said = {
        "program": str(PROGRAM),
        "arguments": [str(tmp_path), TOTAL, KILL_AT],
        "nproc_per_node": 3,
        "job": job,
        "log_dir": "logs",
        "environment": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": 1},
    }
    file.write_text(json.dumps(said))
    command = [sys.executable, "-m", "multiworld", "train", "--tee", "3", str(file)]
    written = tmp_path / "output"
    with written.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            give_up_at = time.monotonic() + TIMEOUT_S
            while len(list(tmp_path.glob("waits-*"))) < 2 and process.poll() is None:
                assert time.monotonic() < give_up_at, written.read_text()
                time.sleep(0.05)
            status = status_of(job, capsys)
            while len(status["faults"]) < 2:  # the news of the join is under way
                assert time.monotonic() < give_up_at, written.read_text()
                status = status_of(job, capsys)
            assert train_status.main(["--job", job]) == 0
            text = capsys.readouterr().out
            page = re.search(r"page: (\S+)", text)
            assert page is not None
            with urllib.request.urlopen(f"{page[1]}metrics", timeout=10) as answer:
                metrics = answer.read().decode()
            with urllib.request.urlopen(page[1], timeout=10) as answer:
                document = answer.read().decode()
            assert events.main(["--job", job, "--json"]) == 0
            happened = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            (tmp_path / "go").touch()
            process.wait(timeout=TIMEOUT_S)
        finally:
            process.kill()
    output = written.read_text()
    assert process.returncode == 0, output

    failure, join = status["faults"]
    assert (failure["kind"], failure["step"], failure["replicas"]) == ("failure", KILL_AT, 2)
    assert failure["text"].startswith("rank 0 was lost (PeerDiedError")
    assert 0 < failure["took_s"] < 5
    assert {"detect", "agree", "form", "redo"} <= set(failure["phases"])
    assert (join["kind"], join["text"]) == ("join", "rank 0 came")
    assert status["value_name"] == "loss"
    assert status["total"] == TOTAL
    assert "training shown: step " in text
    assert checked_samples(metrics)['multiworld_training_changes_total{training="shown",kind="failure"}'] == 1
    first = json.loads(document.partition('id="first">')[2].partition("</script>")[0])
    assert first["trainings"][0]["curve"]
    assert [each["kind"] for each in happened if each["kind"].startswith("training")][:2] == [
        "training changed",
        "training recovered",
    ]

    assert f"shown: 2 replicas go on with step {KILL_AT} (without rank 0); this rank shows the progress now" in output
    assert f"shown  step {TOTAL}/{TOTAL}" in output
    assert "lost rank" not in output.replace("shown: lost rank", "")  # of its worlds, which have numbers of their own

    svg = tmp_path / "report.svg"
    assert train_report.main([str(tmp_path / "logs"), "--json", "--svg", str(svg)]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    account = report["account"]
    assert account["num_steps"] == TOTAL
    assert [each["kind"] for each in report["recoveries"]] == ["failure", "join"]
    assert [each["rank"] for each in report["recoveries"][0]["lost"]] == [0]
    assert report["recoveries"][1]["transfers"][0]["rank"] == 0
    assert account["good_s"] + sum(account["losses"].values()) == pytest.approx(account["wall_s"])
    assert account["num_redone"] == 2
    assert [each["rank"] for each in report["members"]] == [0, 0, 1, 2]
    ET.fromstring(svg.read_text())
