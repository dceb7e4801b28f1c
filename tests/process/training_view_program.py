"""A small training whose rank 0 kills itself, for tests of what is shown of it. Started by the launcher.

training_view_program.py FOLDER TOTAL KILL_AT: once rank 0 is back, all wait in a step until FOLDER has a file ``go``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from multiworld import training
from multiworld.training.events import MembershipChanged, TrainingEvent
from tests.process.training_sync_program import Rows, loss_of, make_model

PAUSE_S = 0.01  # so that there are steps left when the killed rank is back


def train(folder: Path, total: int, kill_at: int) -> None:
    torch.set_num_threads(1)
    job = training.join("shown", lease_s=3.0)
    is_back = False

    def happened(event: TrainingEvent) -> None:
        nonlocal is_back
        is_back |= isinstance(event, MembershipChanged) and event.generation > 1 and bool(event.came)

    job.listen(happened)
    model: nn.Module = job.replicate(make_model())
    optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    dies = job.rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    go = folder / "go"
    for step in job.steps(Rows(), total=total):
        with step:
            for _, inputs in step:
                if dies and step.index == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                while is_back and not go.exists():
                    (folder / f"waits-{job.rank}").touch()
                    time.sleep(PAUSE_S)
                if not is_back:
                    time.sleep(PAUSE_S)
                loss = loss_of(model, inputs)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own has no types
                step.record(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
