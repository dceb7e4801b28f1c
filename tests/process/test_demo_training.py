"""The demo of training as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.testing.deadlines import scaled
from tests import warm_programs

pytestmark = [pytest.mark.process, pytest.mark.alone, pytest.mark.timeout(scaled(170))]


def test_two_replicas_with_a_kill_train_as_one_without(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    options = ["--replicas=2", "--steps=80", "--kills=1", "--seed=3", f"--json={path}"]
    command = [sys.executable, "-m", "multiworld", "demo", "training", *options]
    ended = warm_programs.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=scaled(160), check=False
    )
    assert ended.returncode == 0, ended.stdout
    report = json.loads(path.read_text())
    assert report["holds"] is True
    assert report["losses"] == report["losses_without_kills"]
    assert len(report["losses"]) == 80
    assert report["losses"][-1] < 0.5 * report["losses"][0]
    assert len(report["kills"]) == len(report["pauses_s"]) == len(report["returns_s"]) == 1
    assert "Everything held." in ended.stdout
