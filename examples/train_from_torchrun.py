"""``train_ddp.py`` on resilient steps: the same model, batches and optimizer, and nothing is done again after a loss.

    multiworld run --nproc-per-node 3 examples/train_from_torchrun.py

Kill one of the processes that it names with ``kill -9``, or have rank 1 do it itself: ``--kill-at 13``. A comment says
what each changed line was in the loop for torchrun. Its checkpoints went: they would still be good for the case that
all processes are lost at once, as ``training.join(..., checkpoint=training.Checkpoint(folder))``.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from multiworld import training

BATCH_SIZE, STEPS_PER_EPOCH = 24, 20
KILLED_RANK = 1


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)


class Rows(Dataset[Tensor]):
    """The rows of all batches of ``train_ddp.py`` after one another, ``[8]`` each."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return self._steps * BATCH_SIZE

    def __getitem__(self, index: int) -> Tensor:
        return batch(index // BATCH_SIZE)[index % BATCH_SIZE]


def batch(step: int) -> Tensor:
    """``[BATCH_SIZE, 8]``: a function of the step only."""
    return torch.randn(BATCH_SIZE, 8, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    return loss


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    job = training.join("ddp")  # was: dist.init_process_group("gloo")
    net, optimizer = make_model()
    model = job.replicate(net)  # was: DistributedDataParallel(net)
    job.optimizer(optimizer)  # new: it runs only when a step counts
    loader = job.loader(Rows(options.steps), global_batch=BATCH_SIZE, micro_batch=4)  # was: batch(step)[rank::size]
    print(f"rank {job.rank} of {job.world_size}, pid {os.getpid()}", flush=True)
    for step in job.steps(loader, total=options.steps):  # was: for step in range(first_after_checkpoint, steps)
        with step:  # new: where a lost peer is noticed
            for inputs in step:  # new: the micro-batches of this rank. optimizer.zero_grad() went
                if step.index == options.kill_at and job.rank == KILLED_RANK and is_first_life():
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = loss_of(model, inputs)
                loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)  # new: its mean over the whole batch, wherever it was computed
            optimizer.step()
        if step.committed and job.is_first and step.index % STEPS_PER_EPOCH == 0:  # was: if rank == 0
            print(f"epoch {step.index // STEPS_PER_EPOCH}: loss {step.values['loss']:.4f}", flush=True)
    if job.is_first:  # a replacement that comes after the last step has nothing to tell
        with torch.no_grad():
            print(f"rank {job.rank}: loss at the end {loss_of(net, batch(-1)).item():.9f}", flush=True)


def is_first_life() -> bool:
    return os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of the whole training (default 200)")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
