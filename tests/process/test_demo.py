"""The main job as a user runs it: with all its faults, on Gloo, interrupted, and with its own process killed."""

from __future__ import annotations

import contextlib
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

pytestmark = [pytest.mark.process, pytest.mark.alone, pytest.mark.timeout(scaled(120))]

PROGRAM = "import sys; from multiworld.cli.main import main; sys.exit(main())"


class Demo:
    """A running ``multiworld demo`` with its output, and all the processes that it has started so far."""

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

    def descendants(self) -> dict[int, int]:
        """Return when each process below this one was started, by its id."""
        parents = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                parents[int(folder.name)] = _stat(int(folder.name), PARENT)
        found, last = set(), {self.process.pid}
        while last:
            last = {pid for pid, parent in parents.items() if parent in last}
            found |= last
        return {pid: _stat(pid, START_TIME) for pid in found}


PARENT, START_TIME = 1, 19  # fields of /proc/PID/stat after the name


def _stat(pid: int, field: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[field])


def still_run(processes: dict[int, int]) -> set[int]:
    """Return which of these have not ended; an id that another process has by now is none."""
    return {pid for pid, start_time in processes.items() if start_time >= 0 and _stat(pid, START_TIME) == start_time}


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        processes = demo.descendants()
        if demo.process.poll() is None:
            demo.process.kill()
        demo.process.communicate()
        for pid in still_run(processes):
            with contextlib.suppress(ProcessLookupError):
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
    demo = start(demos, "--no-faults", "--seconds", "1.5", "--backend", "gloo", "--json", str(path))
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
    demo = start(demos, "--no-faults", "--seconds", "1", "--json", str(path))
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


def test_interrupt_ends_every_process(demos: list[Demo]) -> None:
    demo = start(demos, "--seconds", "60")
    demo.read_until("full load")
    processes = demo.descendants()
    assert len(processes) >= 5, "four replicas, and the process that starts them"
    demo.process.send_signal(signal.SIGINT)
    status, output = demo.finish()
    assert status == 130, output
    assert "Traceback" not in output
    assert not still_run(processes)


def test_all_processes_end_by_themselves_when_the_demo_is_killed(demos: list[Demo]) -> None:
    demo = start(demos, "--seconds", "60", "--no-faults")
    demo.read_until("full load")
    processes = demo.descendants()
    assert len(processes) >= 5
    demo.process.kill()
    assert wait_until(lambda: not still_run(processes), 15), still_run(processes)


@pytest.mark.parametrize("name", ["pigeon", "nccl"])
def test_backend_that_cannot_serve_ends_with_a_clear_message(name: str, demos: list[Demo]) -> None:
    status, output = start(demos, "--backend", name).finish()
    assert status == 2
    assert f"backend '{name}'" in output
    assert "Traceback" not in output
