"""The example of replicas with FSDP2 inside: one process is killed, and its replica comes back as one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from multiworld.testing import scaled
from tests import warm_programs

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]


def run(name: str, *options: str) -> tuple[dict[int, float], str]:
    """Return the losses that rank 0 printed, by step, and all output."""
    command = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=4", "--max-restarts=3"]
    command += ["--preload=multiworld.training", str(EXAMPLES / name), *options]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+)", ended.stdout)}
    return losses, ended.stdout


def test_two_replicas_of_two_processes_lose_no_step_when_one_process_is_killed() -> None:
    losses, output = run("train_fsdp_replicas.py", "--steps=31", "--kill-at=12")
    assert sorted(losses) == [0, 10, 20, 30]
    assert losses[30] < 0.7 * losses[0]  # it learns; test_training_replica has the right values
    lives = re.findall(r"rank (\d): process (\d) of replica (\d)", output)
    assert sorted(lives) == [
        ("0", "0", "0"),
        ("1", "1", "0"),
        ("2", "0", "1"),
        ("2", "0", "1"),
        ("3", "1", "1"),
        ("3", "1", "1"),
    ]
