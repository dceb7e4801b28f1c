"""A training under the launcher that loses all its processes at once: it goes on from its newest checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing import scaled
from tests import warm_programs
from tests.checkpoints import steps_in

from .training_checkpoint_program import EVERY

MODULE = "tests.process.training_checkpoint_program"
PRELOADED = "torch.distributed.checkpoint.default_planner"
LOST_AT, END, LATER_END = 25, 32, 38

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(200))]


def run(folder: Path, num_processes: int, total: int) -> list[list[dict[str, Any]]]:
    """Run it to its end, and return what each of its processes wrote down, in the order in which they began."""
    before = set(folder.glob("*-*"))
    options = [f"--nproc-per-node={num_processes}", "--max-restarts=4", f"--preload={PRELOADED}", "--module", MODULE]
    command = [sys.executable, "-m", "multiworld.run", *options, str(folder), str(total), str(LOST_AT)]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=scaled(100), check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    logs = sorted(set(folder.glob("[0-9]*-[0-9]*")) - before, key=lambda path: path.stat().st_ctime_ns)
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in logs]


def test_all_processes_are_lost_and_the_training_goes_on_with_the_same_bits_then_elsewhere(tmp_path: Path) -> None:
    lives = run(tmp_path, 2, END)
    done = [[said for said in life if "did" in said] for life in lives]
    states: dict[int, str] = {}
    for said in (said for life in done for said in life):
        assert states.setdefault(said["did"], said["after"]) == said["after"]  # whoever did it, and however often
    assert sorted(states) == list(range(END))

    newest = LOST_AT // EVERY * EVERY
    loaded = [said for life in lives for said in life if said.get("event") == "CheckpointLoaded"]
    assert [said["step"] for said in loaded] == [newest]  # one process reads it, and gives it to the other
    assert [life[0]["did"] for life in done if life].count(newest) == 2
    assert not [said for life in lives for said in life if said.get("event") == "CheckpointFailed"]
    assert steps_in(tmp_path / "saved") == [END, 30, 20]

    later = [[said for said in life if "did" in said] for life in run(tmp_path, 1, LATER_END)]
    (life,) = later
    assert [said["did"] for said in life] == list(range(END, LATER_END))
    assert life[0]["before"] == states[END - 1]
