"""A small training whose ranks kill themselves on a plan, for tests of what is shown of it. Started by the launcher.

training_view_program.py TOTAL [RANK:STEP ...]
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn

from multiworld import training
from tests.process.training_sync_program import Rows, loss_of, make_model

STEP_S = 0.02


def train(total: int, kills: dict[int, int]) -> None:
    torch.set_num_threads(1)
    job = training.join("shown", lease_s=3.0)
    model: nn.Module = job.replicate(make_model())
    optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in job.steps(Rows(), total=total):
        with step:
            for _, inputs in step:
                if is_first and kills.get(job.rank) == step.index:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(STEP_S)
                loss = loss_of(model, inputs)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own has no types
                step.record(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    train(int(sys.argv[1]), {int(rank): int(at) for rank, at in (each.split(":") for each in sys.argv[2:])})
