"""A loop as one writes it for torchft, on resilient steps. Each changed line says what it was.

    multiworld run --nproc-per-node 3 examples/train_from_torchft.py

torchft needs a lighthouse process and a shell for each replica group; here one command starts all. A killed replica
takes its samples along there, and the batch is smaller then; here the others compute them in the same step. The
program checks that at its end: the ledger says that each sample of each epoch was used once. Kill a process with
``kill -9``, or have rank 0 do it itself: ``--kill-at 7``.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from multiworld import training

NUM_SAMPLES, GLOBAL_BATCH, MICRO_BATCH, EPOCHS = 240, 24, 4, 2
KILLED_RANK = 0


def make_dataset() -> TensorDataset:
    inputs = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = make_dataset()

    # was: manager = Manager(pg=ProcessGroupGloo(), min_replica_size=1, load_state_dict=..., state_dict=...)
    job = training.join("ported", min_replicas=1)
    # was: model = DistributedDataParallel(manager, net)
    model = job.replicate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    # was: optimizer = Optimizer(manager, AdamW(...)): zero_grad() asked for a quorum, step() voted
    optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    # was: StatefulDataLoader(dataset, sampler=DistributedSampler(dataset, replica_rank, num_replicas, ...))
    loader = job.loader(
        dataset,
        global_batch=GLOBAL_BATCH,
        micro_batch=MICRO_BATCH,
        shuffle=True,
        seed=0,
        epochs=EPOCHS,
        ledger=options.ledger,
    )
    print(f"rank {job.rank} of {job.world_size}, pid {os.getpid()}", flush=True)
    # was: while manager.current_step() < total: for inputs, labels in loader
    for step in job.steps(loader):
        with step:
            for inputs, labels in step:
                if step.index == options.kill_at and job.rank == KILLED_RANK and is_first_life():
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = loss_of(model, inputs, labels)
                loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)
            optimizer.step()  # was: the step counts only if should_commit() said so
        if step.committed and job.is_first and step.index % 5 == 0:
            # was: manager.num_participants() samples at a time; now a step has GLOBAL_BATCH whatever dies
            print(f"step {step.index}: {step.num_samples} samples, loss {step.values['loss']:.4f}", flush=True)
    if job.is_first:
        print(training.check_ledger(options.ledger), flush=True)


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), labels)


def is_first_life() -> bool:
    return os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    folder = Path(tempfile.gettempdir(), f"train_from_torchft-{os.environ.get('TORCHELASTIC_RUN_ID', '')}")
    parser.add_argument("--ledger", type=Path, default=folder, help="where the ledger goes (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
