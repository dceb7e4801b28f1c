"""All members that held some layer are killed: the training ends with an error, or goes on where nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from multiworld.testing import scaled
from tests import warm_programs

from .training_pipeline_program import Options
from .training_pipelines import PROGRAM, TOTAL, losses, read, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(240))]  # each starts ten processes, and trains twice

LEFT = 0


def kills(step: int) -> tuple[tuple[int, int, str], ...]:
    """Three of four: two layers in each of three stages are more than the one that is left can have had."""
    return tuple((rank, step, "forward") for rank in range(4) if rank != LEFT)


def run(folder: Path, options: Options) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    launch = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=4", "--max-restarts=9", "--restart=worker"]
    command = [*launch, str(PROGRAM), str(folder), json.dumps(asdict(options))]
    return warm_programs.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_a_training_without_a_checkpoint_ends_rather_than_begins_anew(tmp_path: Path) -> None:
    ended = run(tmp_path / "run", Options(kills=kills(4)))
    assert ended.returncode != 0
    assert "LayersLostError: before step 4 all members were lost" in ended.stderr, ended.stdout + ended.stderr
    seen = read(tmp_path / "run")
    assert list(seen) == [0, 1, 2, 3]
    assert all(len(each) == 4 for each in seen.values())  # no step was done a second time


def test_where_no_step_was_committed_the_training_begins_anew(tmp_path: Path) -> None:
    ended = run(tmp_path / "run", Options(kills=kills(0)))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert losses(read(tmp_path / "run")) == undisturbed()


def test_with_a_checkpoint_the_training_goes_on_from_there(tmp_path: Path) -> None:
    options = Options(checkpoint=str(tmp_path / "checkpoints"))
    assert run(tmp_path / "before", replace(options, total=6)).returncode == 0
    ended = run(tmp_path / "after", replace(options, kills=kills(7)))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert losses(read(tmp_path / "after"), range(6, TOTAL)) == undisturbed()[6:]
