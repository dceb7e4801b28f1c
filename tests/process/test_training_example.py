"""The example of replicas: one of them is killed, and the result has the same bits."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests import warm_programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_replicas.py"
PRELOAD = "torch._dynamo,multiworld.training"

pytestmark = pytest.mark.process


def train(*options: str) -> tuple[dict[int, float], dict[int, str], str]:
    """Return the losses that rank 0 printed, by step, the digests of the parameters, by rank, and all output."""
    run = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=4", "--max-restarts=3", f"--preload={PRELOAD}"]
    command = [*run, str(EXAMPLE), "--steps=81", *options]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+)", ended.stdout)}
    digests = {int(rank): digest for rank, digest in re.findall(r"rank (\d): parameters (\w+)", ended.stdout)}
    return losses, digests, ended.stdout


def test_replicas_of_which_one_is_killed_end_with_the_bits_of_an_undisturbed_training() -> None:
    undisturbed, expected, _ = train()
    assert sorted(undisturbed) == list(range(0, 81, 10))
    assert undisturbed[80] < 0.85 * undisturbed[0]  # it learns
    assert len(set(expected.values())) == 1
    losses, digests, output = train("--kill-at=10")
    assert len(re.findall(r"rank 1: pid \d+", output)) == 2  # the one that was killed, and its replacement
    assert losses == undisturbed
    assert digests == expected
