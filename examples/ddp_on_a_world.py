"""DistributedDataParallel over a world: a member dies inside a backward pass, a new one takes its place.

Training goes on, and at the end the losses are those of a single process that was never disturbed.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import multiworld as mw

SIZE, NUM_STEPS, DIES_AT = 3, 20, 7


class Trainer:
    """A model, its optimizer, and what they were after the last two steps: a member may be one step behind another."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.states: dict[int, Any] = {}

    def keep(self, step: int) -> None:
        """Remember the present state as that before ``step``."""
        state = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        self.states = {step - 1: self.states.get(step - 1), step: state}

    def agree(self, world: mw.World) -> int:
        """Go back to the last step that all members have begun; whoever is new gets the state from another."""
        group = world.process_group()
        begun: list[list[int]] = [[] for _ in range(world.world_size)]
        dist.all_gather_object(begun, [step for step, state in self.states.items() if state], group=group)
        step = min(max(steps) for steps in begun if steps)
        state = [self.states.get(step)]
        dist.broadcast_object_list(state, group=group, group_src=[step in steps for steps in begun].index(True))
        of_model, of_optimizer = state[0]  # type: ignore[misc]
        self.model.load_state_dict(of_model)
        self.optimizer.load_state_dict(of_optimizer)
        self.keep(step)
        return step

    def step(self, model: nn.Module, inputs: Tensor) -> float:
        """Take one step; ``model`` is ours, perhaps wrapped."""
        self.optimizer.zero_grad()
        loss: Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()


def batch(step: int) -> Tensor:
    """``[SIZE * 4, 8]``: the same in every process."""
    return torch.randn(SIZE * 4, 8, generator=torch.Generator().manual_seed(step))


def train(rank: int, store: str, dies_at: int | None = None, is_new: bool = False) -> list[float]:
    """Be one member until the last step, through any number of generations; return the losses of its part."""
    torch.set_num_threads(1)
    losses = [0.0] * NUM_STEPS
    replacement = None
    with mw.WorldManager() as manager:
        trainer = Trainer()
        if not is_new:
            trainer.keep(0)
        world = manager.blocking.join("training", rank, SIZE, store)
        while True:
            try:
                step = trainer.agree(world)
                model = DistributedDataParallel(trainer.model, process_group=world.process_group())
                while step < NUM_STEPS:
                    if step == dies_at:  # when its last layer's gradients are there, and the first one's are not
                        trainer.model[2].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[operator]
                    losses[step] = trainer.step(model, batch(step)[rank * 4 : rank * 4 + 4])
                    step += 1
                    trainer.keep(step)
                break
            except mw.WorldBrokenError as error:
                print(f"rank {rank}, step {step}: {type(error).__name__}: rank {error.rank} is gone", flush=True)
                if rank == 0:
                    replacement = start(error.rank, store, is_new=True)
                world = manager.blocking.rejoin("training", timeout_s=60)
                print(f"rank {rank}: generation {world.generation} has formed", flush=True)
        world.blocking.barrier()
    if replacement is not None:
        replacement.join()
    return losses


def start(rank: int, store: str, dies_at: int | None = None, is_new: bool = False) -> BaseProcess:
    """Start a member in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["multiworld", "torch"])  # imported once, not by each process
    process = context.Process(target=train, args=(rank, store, dies_at, is_new))
    process.start()
    return process


def train_alone() -> list[float]:
    """Return what rank 0 must see: the loss of its part, while the steps are those of the whole batch."""
    trainer, losses = Trainer(), []
    for step in range(NUM_STEPS):
        whole = batch(step)
        with torch.no_grad():
            part = whole[:4]
            losses.append(float((trainer.model(part) - part.sum(1, keepdim=True)).square().mean()))
        trainer.step(trainer.model, whole)
    return losses


def main() -> None:
    """Be rank 0, and host the store."""
    with mw.WorldManager() as host:
        store = host.serve_store("tcp://127.0.0.1:0")
        others = [start(1, store, dies_at=DIES_AT), start(2, store)]
        losses = train(0, store)
        for process in others:
            process.join()
    assert [process.exitcode for process in others] == [-signal.SIGKILL, 0]
    expected = train_alone()
    assert max(abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=True)) < 1e-6
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, as in one process that was never disturbed")


if __name__ == "__main__":
    main()
