"""A training whose replicas compute their steps alone; each process writes down what it did. Started by the launcher.

training_sync_program.py FOLDER KIND TOTAL KILLED_RANK KILL_AT MOMENT

KIND is a strategy, "fsdp", or a strategy with "-fsdp" behind it. MOMENT is "inner": in the forward of that step, or
"outer": when it has the mean of the outer step that ends that step, and the others have not heard so.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from multiworld import training
from multiworld.training.sync.reduction import OuterReduction

NUM_MICRO_BATCHES, ROWS, INNER_LR, MAX_NORM = 6, 4, 0.05, 100.0
WAIT_AFTER = 20  # steps after the kill: the survivors have taken outer steps alone then
STRATEGIES: dict[str, training.LocalSGD | training.DiLoCo] = {
    "local": training.LocalSGD(every=6),
    "diloco": training.DiLoCo(every=6),
    "streaming": training.DiLoCo(every=8, fragments=2, overlap=1, alpha=0.25),
    "four": training.DiLoCo(every=8, fragments=4),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def rows(step: int, micro_batch: int) -> Tensor:
    """``[ROWS, 4]``"""
    generator = torch.Generator().manual_seed(100 * step + micro_batch)
    return torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    return loss


class Rows:
    """A StepLoader over ``rows`` without an end."""

    global_batch, micro_batch = NUM_MICRO_BATCHES * ROWS, ROWS
    num_micro_batches = NUM_MICRO_BATCHES
    num_steps = None

    def epoch_of(self, step: int) -> int:
        return 0

    def samples(self, step: int) -> Sequence[Sequence[str]]:
        return [[f"{step}.{number}.{row}" for row in range(ROWS)] for number in range(NUM_MICRO_BATCHES)]

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, tuple[int, Tensor]]]:
        for number in micro_batches:
            yield number, (number, rows(step, number))

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        pass

    def digest(self) -> str:
        return "rows"

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class OuterStepKill:
    """Kills this process when it has taken a mean, from the moment on in which it is armed."""

    def __init__(self) -> None:
        self.is_armed = False
        take, kill = OuterReduction.mean, self

        def mean(self: OuterReduction, fragment: int, contributors: int) -> Tensor:
            taken = take(self, fragment, contributors)
            if kill.is_armed:
                os.kill(os.getpid(), signal.SIGKILL)
            return taken

        OuterReduction.mean = mean  # type: ignore[method-assign]


def main(folder: str, kind: str, total: int, killed_rank: int, kill_at: int, moment: str) -> None:
    torch.set_num_threads(1)
    is_sharded = kind.endswith("fsdp")
    outer_kill = OuterStepKill()
    job = training.join("sync", replica_size=2 if is_sharded else 1, progress=False)
    model = make_model()
    if is_sharded:
        for layer in (*model.children(), model):
            fully_shard(layer, mesh=job.replica.device_mesh())
    job.replicate(model, sync=STRATEGIES.get(kind.removesuffix("-fsdp")))
    make_optimizer = torch.optim.AdamW if kind == "fsdp" else torch.optim.SGD
    optimizer = job.optimizer(make_optimizer(model.parameters(), lr=INNER_LR))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    job.track(scheduler=scheduler)
    log_path = Path(folder) / f"{job.rank}-{os.getpid()}"
    is_first_life = not any(Path(folder).glob(f"{job.rank}-*"))
    with log_path.open("w", buffering=1) as log:
        for step in job.steps(Rows(), total=total):
            share = []
            with step:
                for number, inputs in step:
                    loss = loss_of(model, job.replica.part(inputs))
                    if is_first_life and job.rank == killed_rank and step.index == kill_at:
                        outer_kill.is_armed = moment == "outer"
                        if moment == "inner":
                            os.kill(os.getpid(), signal.SIGKILL)
                    loss.backward()  # type: ignore[no-untyped-call]
                    step.record(loss=loss)
                    share.append(number)
                torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                scheduler.step()
            log.write(json.dumps({"step": step.index, "share": share, "values": dict(step.values)}) + "\n")
            if killed_rank >= 0:
                pace(Path(folder), killed_rank, may_wait=step.index == kill_at + WAIT_AFTER)
        params = [each.full_tensor() if isinstance(each, DTensor) else each for each in model.parameters()]
        final = torch.cat([each.detach().flatten() for each in params])
        log.write(json.dumps({"final": final.tolist(), "scheduler": scheduler.last_epoch}) + "\n")


def pace(folder: Path, killed_rank: int, *, may_wait: bool) -> None:
    """Leave the replacement time to come; at one step wait for it, as its interpreter takes long to start."""
    deadline = time.monotonic() + 60
    while may_wait and len(list(folder.glob(f"{killed_rank}-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.01)


if __name__ == "__main__":
    folder, kind, *numbers, moment = sys.argv[1:]
    total, killed_rank, kill_at = map(int, numbers)
    main(folder, kind, total, killed_rank, kill_at, moment)
