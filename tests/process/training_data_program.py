"""A training whose replicas die by plan, with loaders' workers and a ledger. Started by the launcher.

training_data_program.py FOLDER TOTAL RANK:STEP:MICRO_BATCH_OF_ITS_SHARE ...

A rank dies at the first such micro-batch from that step on when all whose deaths come earlier in the plan are back:
without one that has the state, the training would begin again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from multiworld import training

NUM_SAMPLES, GLOBAL_BATCH = 90, 24
DATA: dict[str, Any] = {"global_batch": GLOBAL_BATCH, "micro_batch": 2, "shuffle": True, "seed": 3}


class Noise(Dataset[Tensor]):
    """Sample ``i`` is ``i`` and random numbers, as of an augmentation."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.cat([torch.tensor([index / NUM_SAMPLES]), torch.rand(3)]).double()


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = (model(inputs) - inputs[:, :1]).square().mean()
    return loss


@dataclass(frozen=True)
class Death:
    """One of the plan."""

    rank: int
    step: int
    number: int

    @classmethod
    def from_argument(cls, argument: str) -> Death:
        return cls(*map(int, argument.split(":")))

    def mark(self, folder: Path) -> Path:
        return folder / f"{self.rank}.died"

    def is_over(self, folder: Path) -> bool:
        """Whether this rank died, and has committed a step since."""
        mark = self.mark(folder)
        return mark.exists() and any(
            log.stat().st_mtime > mark.stat().st_mtime for log in folder.glob(f"{self.rank}-*") if log.stat().st_size
        )

    def is_due(self, folder: Path, step: int, number: int) -> bool:
        """Whether the time has come at micro-batch ``number`` of the rank's share, if nobody has to be back before."""
        return step >= self.step and number == self.number and not self.mark(folder).exists()

    def happen(self, folder: Path, plan: Sequence[Death]) -> None:
        """Die, if all that died before are back. Else this step takes longer: they can come only between steps."""
        if all(each.is_over(folder) for each in plan if each.step < self.step):
            self.mark(folder).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)


def main(folder: Path, total: int, *arguments: str) -> None:
    torch.set_num_threads(1)
    plan = [Death.from_argument(each) for each in arguments]
    job = training.join("data")
    model = job.replicate(make_model())
    optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    loader = job.loader(Noise(), **DATA, num_workers=1, ledger=folder / "ledger")
    log = (folder / f"{job.rank}-{os.getpid()}").open("w", buffering=1)
    for step in job.steps(loader, total=total):
        with step:
            for number, inputs in enumerate(step):
                for death in plan:
                    if death.rank == job.rank and death.is_due(folder, step.index, number):
                        death.happen(folder, plan)
                loss = loss_of(model, inputs)
                loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)
            optimizer.step()
        if step.committed:
            log.write(json.dumps([step.index, step.values["loss"]]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
