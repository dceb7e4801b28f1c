"""The main job as a user runs it: with all its faults, on Gloo, interrupted, and with its own process killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing.deadlines import scaled, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]

PROGRAM = "import sys; from multiworld.cli.main import main; sys.exit(main())"


class Demo:
    """A running ``multiworld demo`` with its output, and the worker processes that it has started so far."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, text: str) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in:\n{''.join(lines)}")

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=scaled(90))
        return self.process.returncode, output

    def workers(self) -> set[int]:
        found = set()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and _parent(int(folder.name)) == self.process.pid:
                found.add(int(folder.name))
        return found


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[1])


def _is_worker(pid: int) -> bool:
    try:
        return b"multiworld.demo.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a zombie
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        workers = demo.workers()
        if demo.process.poll() is None:
            demo.process.kill()
        demo.process.communicate()
        for pid in filter(_is_worker, workers):
            os.kill(pid, signal.SIGKILL)


def start(demos: list[Demo], *arguments: str) -> Demo:
    demos.append(Demo(*arguments))
    return demos[-1]


def test_short_run_with_every_fault_holds(tmp_path: Path, demos: list[Demo]) -> None:
    path = tmp_path / "report.json"
    status, output = start(demos, "--seconds", "6", "--seed", "7", "--json", str(path)).finish()
    report: dict[str, Any] = json.loads(path.read_text())
    assert status == 0, f"{output}\n{json.dumps(report, indent=2)}"
    assert report["holds"] is True
    assert report["images_sent"] == report["images_answered"] > 1000
    assert (report["requests_lost"], report["requests_duplicated"], report["predictions_different"]) == (0, 0, 0)
    assert report["accuracy"] == report["accuracy_single_process"] > 0.95
    assert report["worlds_broken_without_reason"] == []
    assert [fault["name"] for fault in report["faults"]] == ["SIGKILL of b1", "SIGKILL of b2", "SIGSTOP of b2"]
    for fault, error in zip(report["faults"], ["PeerDiedError", "PeerDiedError", "PeerStoppedError"], strict=True):
        assert fault["errors"] == {"a": error, "c": error}
        assert fault["detection_s"] < fault["full_strength_s"]
    assert "Everything held." in output


def test_run_on_gloo_without_faults_breaks_no_world(tmp_path: Path, demos: list[Demo]) -> None:
    path = tmp_path / "report.json"
    demo = start(demos, "--no-faults", "--seconds", "1.5", "--backend", "gloo", "--json", str(path))
    status, output = demo.finish()
    assert status == 0, output
    report = json.loads(path.read_text())
    assert report["faults"] == report["worlds_broken_without_reason"] == []
    assert report["max_logit_difference"] == 0.0


def players_in(line: str) -> dict[str, int]:
    """Return the process ids that a line of output shows, by role."""
    return {name: int(pid) for name, pid in re.findall(r"(\w+) \(#\d+, pid (\d+)\)", line)}


def test_replicas_that_somebody_else_kills_and_stops_are_replaced(tmp_path: Path, demos: list[Demo]) -> None:
    path = tmp_path / "report.json"
    demo = start(demos, "--no-faults", "--seconds", "1", "--json", str(path))
    players = players_in(demo.read_until("full load"))
    os.kill(players["b1"], signal.SIGKILL)
    os.kill(players["b2"], signal.SIGSTOP)
    status, output = demo.finish()
    report = json.loads(path.read_text())
    assert status == 0, f"{output}\n{json.dumps(report, indent=2)}"
    assert report["images_sent"] == report["images_answered"] > 0
    assert report["worlds_broken_without_reason"] == []
    faults = {name: fault for fault in report["faults"] for name in players_in(fault["name"])}
    assert faults.keys() == {"b1", "b2"}
    for name, error in (("b1", "PeerDiedError"), ("b2", "PeerStoppedError")):
        assert faults[name]["errors"] == {"a": error, "c": error}
        assert faults[name]["full_strength_s"] is not None


def test_who_kills_what_there_is_only_one_of_reads_that_this_ends_it(demos: list[Demo]) -> None:
    demo = start(demos, "--no-faults", "--seconds", "60")
    os.kill(players_in(demo.read_until("full load"))["a"], signal.SIGKILL)
    status, output = demo.finish()
    assert status == 1
    assert "The pipeline has only one a" in output
    assert "Traceback" not in output


def test_interrupt_ends_every_process(demos: list[Demo]) -> None:
    demo = start(demos, "--seconds", "60")
    demo.read_until("full load")
    workers = demo.workers()
    assert len(workers) >= 4
    demo.process.send_signal(signal.SIGINT)
    status, output = demo.finish()
    assert status == 130, output
    assert "Traceback" not in output
    assert not any(map(_is_worker, workers))


def test_workers_end_by_themselves_when_the_front_is_killed(demos: list[Demo]) -> None:
    demo = start(demos, "--seconds", "60", "--no-faults")
    demo.read_until("full load")
    workers = demo.workers()
    assert len(workers) >= 4
    demo.process.kill()
    assert wait_until(lambda: not any(map(_is_worker, workers)), 15), sorted(filter(_is_worker, workers))


@pytest.mark.parametrize("name", ["pigeon", "nccl"])
def test_backend_that_cannot_serve_ends_with_a_clear_message(name: str, demos: list[Demo]) -> None:
    status, output = start(demos, "--backend", name).finish()
    assert status == 2
    assert f"backend '{name}'" in output
    assert "Traceback" not in output
