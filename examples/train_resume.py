"""A training loses all its replicas, and goes on elsewhere with another number of them, from its newest checkpoint.

    multiworld run --nproc-per-node 3 --max-restarts 0 examples/train_resume.py --folder /tmp/resume --die-at 17
    multiworld run --nproc-per-node 2 examples/train_resume.py --folder /tmp/resume

The first command ends with an error: all ranks kill themselves in step 17. The second one says with which step it goes
on, and ends with the parameters of a training that nobody disturbed: ``exact=True`` makes them equal in all bits, for
any number of replicas.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from multiworld import training

NUM_SAMPLES, GLOBAL_BATCH, MICRO_BATCH, EVERY_STEPS = 120, 24, 4, 5


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))


def make_dataset() -> TensorDataset:
    inputs = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    checkpoint = training.Checkpoint(options.folder, every_steps=EVERY_STEPS)
    job = training.join("resumed", exact=True, checkpoint=checkpoint)
    model = job.replicate(make_model())
    optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = job.loader(make_dataset(), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True)
    first = None
    for step in job.steps(loader, total=options.steps):
        if first is None:
            first = step.index
            print(f"rank {job.rank} of {job.world_size}, pid {os.getpid()}: from step {first}", flush=True)
        with step:
            for inputs, targets in step:
                if step.index == options.die_at:
                    die(options.folder)
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)
            optimizer.step()
    if job.is_first:
        print(f"parameters at the end: {digest(model)}", flush=True)


def die(folder: Path) -> None:
    """Die as soon as there is a checkpoint: another process may still be writing it."""
    while not any(folder.glob("step-*")):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoints; all hosts share it")
    parser.add_argument("--steps", type=int, default=30, help="of the whole training (default 30)")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="all ranks kill themselves there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
