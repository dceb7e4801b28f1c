"""The main job as a user runs it: with all its faults, on Gloo, and with replicas that somebody else injures."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing.deadlines import scaled

from .demo_process import Demo, start_demo, started_demos

pytestmark = [pytest.mark.process, pytest.mark.alone, pytest.mark.timeout(scaled(120))]


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    with started_demos() as started:
        yield started


def test_short_run_with_every_fault_holds(tmp_path: Path, demos: list[Demo]) -> None:
    path = tmp_path / "report.json"
    status, output = start_demo(demos, "--seconds", "6", "--seed", "7", "--json", str(path)).finish()
    report: dict[str, Any] = json.loads(path.read_text())
    assert status == 0, f"{output}\n{json.dumps(report, indent=2)}"
    assert report["holds"] is True
    assert report["images_sent"] == report["images_answered"] > 1000
    assert (report["requests_lost"], report["requests_duplicated"], report["predictions_different"]) == (0, 0, 0)
    assert report["accuracy"] == report["accuracy_single_process"] > 0.95
    assert report["worlds_broken_without_reason"] == []
    faults = report["faults"]
    signals = sorted(re.sub(r"-\d+$", "", fault["name"]) for fault in faults)
    assert signals == ["SIGKILL of b", "SIGKILL of b", "SIGKILL of c", "SIGSTOP of b"]
    for fault in faults:
        assert len(fault["errors"]) >= 2, "each neighbor notices by itself"
        assert fault["detection_s"] < fault["detection_limit_s"]
        assert fault["full_strength_s"] is not None
        assert fault["fenced_by"] == ("SIGKILL" if fault["must_be_fenced"] else "")
    assert "Everything held." in output


def test_run_on_gloo_without_faults_breaks_no_world(tmp_path: Path, demos: list[Demo]) -> None:
    path = tmp_path / "report.json"
    demo = start_demo(demos, "--no-faults", "--seconds", "1.5", "--backend", "gloo", "--json", str(path))
    status, output = demo.finish()
    assert status == 0, output
    report = json.loads(path.read_text())
    assert report["faults"] == report["worlds_broken_without_reason"] == []
    assert report["max_logit_difference"] == 0.0


def players_in(line: str) -> dict[str, int]:
    """Return the process ids that a line of output shows, by replica."""
    return {name: int(pid) for name, pid in re.findall(r"(\w-\d+) \(pid (\d+)\)", line)}


def test_replicas_that_somebody_else_kills_and_stops_are_replaced(tmp_path: Path, demos: list[Demo]) -> None:
    path = tmp_path / "report.json"
    demo = start_demo(demos, "--no-faults", "--seconds", "1", "--json", str(path))
    players = players_in(demo.read_until("full load"))
    assert players.keys() == {"a-1", "b-1", "b-2", "c-1"}
    os.kill(players["a-1"], signal.SIGKILL)  # there is only one
    os.kill(players["b-2"], signal.SIGSTOP)
    status, output = demo.finish()
    report = json.loads(path.read_text())
    assert status == 0, f"{output}\n{json.dumps(report, indent=2)}"
    assert report["images_sent"] == report["images_answered"] > 0
    assert report["worlds_broken_without_reason"] == []
    faults = {name: fault for fault in report["faults"] for name in players_in(fault["name"])}
    assert faults.keys() == {"a-1", "b-2"}
    assert all(fault["full_strength_s"] is not None for fault in faults.values())
    assert "not by this demo" in output
