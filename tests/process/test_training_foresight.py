"""A loss for which a plan was made in advance: the training goes on with it, to the same bits."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from multiworld.testing import scaled
from tests import warm_programs

from .training_foresight_program import KILLED_IN
from .training_pipeline_program import Options
from .training_pipelines import TOTAL, losses, read, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # trains twice

PROGRAM = Path(__file__).with_name("training_foresight_program.py")


def test_after_a_loss_the_plan_that_was_made_in_advance_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    options = Options(kills=((3, KILLED_IN, "reduced"),), waits_for=TOTAL)
    run = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=4", "--max-restarts=5", "--restart=worker"]
    command = [*run, str(PROGRAM), str(folder), json.dumps(asdict(options))]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    plans = [line.rpartition(": ")[2] for line in ended.stdout.splitlines() if "planned in advance" in line]
    assert plans[0] != "None", ended.stdout + ended.stderr
    assert losses(read(folder)) == undisturbed()
