"""The training of ``train_ddp.py`` on a world: when a rank dies, it alone is started again, and no step is lost.

    multiworld run --nproc-per-node 3 examples/train_ddp_worlds.py

Kill one of the processes that it names with ``kill -9``, or have rank 1 do it itself: ``--kill-at 37``. The others keep
their model, and the new process takes it from one of them. Checkpoints are left out here: they would still be good for
the case that all ranks are lost at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

import multiworld as mw

BATCH_SIZE, STEPS_PER_EPOCH = 24, 20
KILLED_RANK = 1


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)


def batch(step: int) -> Tensor:
    """``[BATCH_SIZE, 8]``: the same in every process, for it depends on the step only."""
    return torch.randn(BATCH_SIZE, 8, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    return loss


class Trainer:
    """The model, its optimizer, and the number of steps that made them what they are."""

    def __init__(self) -> None:
        self.net, self.optimizer = make_model()
        self.step = 0

    def agree(self, world: mw.World) -> None:
        """Take the state of whoever is ahead: the loss of a rank finds some before and some behind the same step."""
        group = world.process_group()
        steps = [0] * world.world_size
        dist.all_gather_object(steps, self.step, group=group)
        state: list[Any] = [(self.net.state_dict(), self.optimizer.state_dict(), self.step)]
        dist.broadcast_object_list(state, group=group, group_src=steps.index(max(steps)))
        of_net, of_optimizer, self.step = state[0]
        self.net.load_state_dict(of_net)
        self.optimizer.load_state_dict(of_optimizer)
        print(f"rank {world.rank} of {world.world_size}, pid {os.getpid()}: from step {self.step}", flush=True)

    def train(self, world: mw.World, options: argparse.Namespace) -> None:
        """Go on until the last step. Raises WorldBrokenError when a rank is lost, from ``backward`` for example."""
        model = DistributedDataParallel(self.net, process_group=world.process_group())
        while self.step < options.steps:
            step, rank = self.step, world.rank
            if step == options.kill_at and rank == KILLED_RANK and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            self.optimizer.zero_grad()
            loss = loss_of(model, batch(step)[rank :: world.world_size])
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.step = step + 1
            if rank == 0 and step % STEPS_PER_EPOCH == 0:
                print(f"epoch {step // STEPS_PER_EPOCH}, step {step}: loss {loss.item():.4f}", flush=True)
            time.sleep(options.pause_s)


@record
def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    trainer = Trainer()
    with mw.WorldManager() as manager:
        world = manager.blocking.join("trainers")  # rank, size and store come from the launcher
        while True:
            try:
                trainer.agree(world)
                trainer.train(world, options)
                world.blocking.barrier()  # nobody leaves before all have done the last step
                break
            except mw.WorldBrokenError as error:
                print(f"rank {world.rank}, step {trainer.step}: rank {error.rank} is gone", flush=True)
                world = manager.blocking.rejoin("trainers", timeout_s=60)
    with torch.no_grad():
        print(f"rank {world.rank}: loss at the end {loss_of(trainer.net, batch(-1)).item():.9f}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="of the whole training (default 100)")
    parser.add_argument(
        "--pause-s", type=float, default=0.1, help="after each step, to have time to kill (default 0.1)"
    )
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
