"""Replicas with workers of loaders die, under the launcher: each sample is committed once, and no loss changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from multiworld.training import check_ledger
from multiworld.training.data.opening import open_loader
from tests import warm_programs

from .training_data_program import DATA, GLOBAL_BATCH, Noise, loss_of, make_model

PROGRAM = Path(__file__).with_name("training_data_program.py")
TOTAL = 40

pytestmark = pytest.mark.process


def losses_of_one_process() -> list[float]:
    """Train here, without any of it."""
    loader = open_loader(Noise(), **DATA)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(TOTAL):
        each = [loss_of(model, inputs) for _, inputs in loader.fetch(step, range(loader.num_micro_batches))]
        loss = torch.stack(each).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.timeout(120)
def test_killed_replicas_cost_no_sample_and_change_no_loss(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=3", "--max-restarts=3", str(PROGRAM)]
    command = [*run, str(tmp_path), str(TOTAL), "1:7:2", "0:20:0", "2:20:1"]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert all((tmp_path / f"{rank}.died").exists() for rank in range(3))
    report = check_ledger(tmp_path / "ledger")
    assert (report.steps, report.samples, report.problems) == (TOTAL, TOTAL * GLOBAL_BATCH, ()), report
    losses: dict[int, float] = {}
    for path in tmp_path.glob("*-*"):
        for line in path.read_text().splitlines():
            step, loss = json.loads(line)
            assert losses.setdefault(step, loss) == loss
    assert [losses[step] for step in range(TOTAL)] == pytest.approx(losses_of_one_process(), rel=1e-6)
