"""Replicas that compute their steps alone and meet once in ten: DiLoCo. One dies, and costs only its own steps.

    multiworld run --nproc-per-node 3 examples/train_diloco.py

Kill one of the processes that it names with ``kill -9``, or have rank 1 do it itself: ``--kill-at 24``. The others lose
nothing; the replacement begins with the state of the last outer step.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
from torch import nn
from torch.utils.data import TensorDataset

from multiworld import training

NUM_SAMPLES, GLOBAL_BATCH, MICRO_BATCH = 2400, 24, 4
KILLED_RANK = 1


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    targets = inputs.sum(1, keepdim=True)

    job = training.join("diloco")
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    model = job.replicate(net, sync=training.DiLoCo(every=10))  # the only difference from replicas in lockstep
    optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = job.loader(
        TensorDataset(inputs, targets), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True
    )
    print(f"rank {job.rank} of {job.world_size}, pid {os.getpid()}", flush=True)
    is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in job.steps(loader, total=options.steps):
        with step:
            for rows, wanted in step:
                if step.index == options.kill_at and job.rank == KILLED_RANK and is_first_life:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = nn.functional.mse_loss(model(rows), wanted)
                loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)
            optimizer.step()
    if job.is_first:
        with torch.no_grad():
            untrained = nn.functional.mse_loss(torch.zeros_like(targets), targets)
            trained = nn.functional.mse_loss(model(inputs), targets)
        print(f"loss {untrained.item():.3f} of a model that says 0, {trained.item():.3f} of this one", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="of the whole training (default 100)")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
