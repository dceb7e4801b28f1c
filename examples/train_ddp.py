"""DistributedDataParallel as one writes it for torchrun: when a rank dies, all go back to the last checkpoint.

    torchrun --standalone --nproc-per-node 3 --max-restarts 3 examples/train_ddp.py
    multiworld run        --nproc-per-node 3 --max-restarts 3 examples/train_ddp.py

Kill one of the processes that it names with ``kill -9``, or have rank 1 do it itself: ``--kill-at 37``. All are started
again, and do again what was done since the checkpoint. ``train_ddp_worlds.py`` is the same training on a world.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

BATCH_SIZE, STEPS_PER_EPOCH, STEPS_PER_CHECKPOINT = 24, 20, 10
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


class Checkpoint:
    """A folder that all ranks read when they start, and that rank 0 writes to."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._state, self._reached = folder / "checkpoint.pt", folder / "reached"

    def load(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Return the step to go on with."""
        if not self._state.exists():
            return 0
        state = torch.load(self._state)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def save(self, net: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Replace the checkpoint as a whole: who dies meanwhile leaves the old one."""
        new = self._state.with_suffix(".new")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
        new.replace(self._state)

    def note_reached(self, step: int) -> None:
        """Remember how far the training was, only to tell later how much was lost."""
        new = self._reached.with_suffix(".new")
        new.write_text(str(step))
        new.replace(self._reached)

    def reached(self) -> int:
        return int(self._reached.read_text()) if self._reached.exists() else 0


@record
def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    folder = options.checkpoints or Path(tempfile.gettempdir(), f"train_ddp-{os.environ['TORCHELASTIC_RUN_ID']}")
    checkpoint = Checkpoint(folder)
    net, optimizer = make_model()
    first = checkpoint.load(net, optimizer)
    again = max(0, checkpoint.reached() - first)
    print(f"rank {rank} of {size}, pid {os.getpid()}: from step {first}, steps done again: {again}", flush=True)
    model = DistributedDataParallel(net)
    for step in range(first, options.steps):
        if step == options.kill_at and rank == KILLED_RANK and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = loss_of(model, batch(step)[rank::size])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0:
            checkpoint.note_reached(step + 1)
            if (step + 1) % STEPS_PER_CHECKPOINT == 0:
                checkpoint.save(net, optimizer, step + 1)
            if step % STEPS_PER_EPOCH == 0:
                print(f"epoch {step // STEPS_PER_EPOCH}, step {step}: loss {loss.item():.4f}", flush=True)
        time.sleep(options.pause_s)
    with torch.no_grad():
        print(f"rank {rank}: loss at the end {loss_of(net, batch(-1)).item():.9f}", flush=True)
    dist.barrier()  # all have read the folder
    if rank == 0 and options.checkpoints is None:
        shutil.rmtree(folder)
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="of the whole training (default 100)")
    parser.add_argument(
        "--pause-s", type=float, default=0.1, help="after each step, to have time to kill (default 0.1)"
    )
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        metavar="FOLDER",
        help="one that all hosts share, and that stays; default: one in the folder for temporary files",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
