"""A training with checkpoints that loses all its processes at once. Each process writes down what it did, a line each.

training_checkpoint_program.py FOLDER TOTAL LOST_AT

``FOLDER/saved`` has the checkpoints. At step ``LOST_AT`` each process kills itself, the first time it comes there.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from multiworld import training
from multiworld.training.events import CheckpointFailed, CheckpointLoaded, CheckpointSaved, TrainingEvent
from tests.checkpoints import steps_in
from tests.process.training_sync_program import Rows, loss_of
from tests.process.warm_writer import fork_writer

EVERY = 10


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1)).double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.02)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all bits of both."""
    hashed = hashlib.sha256()
    tensors: list[Tensor] = [*model.state_dict().values()]
    for state in optimizer.state_dict()["state"].values():
        tensors += state.values()
    for tensor in tensors:
        hashed.update(tensor.detach().numpy().tobytes())
    return hashed.hexdigest()


def die_once(folder: Path, name: str) -> None:
    marker = folder / name
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_checkpoint(saved: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while step not in steps_in(saved) and time.monotonic() < deadline:
        time.sleep(0.01)


def main(folder: Path, total: int, lost_at: int) -> None:
    torch.set_num_threads(1)
    fork_writer()
    saved = folder / "saved"
    job = training.join("resumed", exact=True, checkpoint=training.Checkpoint(saved, every_steps=EVERY))
    model, optimizer = make_model()
    job.replicate(model)
    job.optimizer(optimizer)
    with (folder / f"{job.rank}-{os.getpid()}").open("w", buffering=1) as log:

        def heard(event: TrainingEvent) -> None:
            if isinstance(event, (CheckpointSaved, CheckpointLoaded, CheckpointFailed)):
                log.write(json.dumps({"event": type(event).__name__, "step": event.step}) + "\n")

        job.listen(heard)
        for step in job.steps(Rows(), total=total):
            before = digest(model, optimizer)
            with step:
                for _, inputs in step:
                    if step.index == lost_at:
                        die_once(folder, f"lost-{job.rank}")
                    loss_of(model, inputs).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if step.committed:
                after = digest(model, optimizer)
                log.write(json.dumps({"did": step.index, "before": before, "after": after}) + "\n")
            if (step.index + 1) % EVERY == 0:  # these steps take a millisecond, and the writer's start takes seconds
                wait_for_checkpoint(saved, step.index + 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
