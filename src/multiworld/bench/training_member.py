"""One of the two processes that train a small model: over raw Gloo and over a world per backend, in turn."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import multiworld as mw

from . import raw_gloo
from .member import Member
from .samples import RAW

SEED = 7
WIDTH, NUM_CLASSES = 512, 10
BATCH_SIZE, NUM_BATCHES = 32, 8
LEARNING_RATE = 0.05


class Training:
    """One replica of the model, its optimizer and the losses of its steps so far."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        torch.manual_seed(SEED)
        layers = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, NUM_CLASSES)
        self._model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        self.losses: list[float] = []

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.losses.append(loss.item())


class TrainingMember(Member):
    """Trains a replica per lane, all of them on this rank's share of the same data."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._trainings: dict[str, Training] = {}
        self._gloo: dist.ProcessGroup | None = None
        self._batches = [_batch(rank, number) for number in range(NUM_BATCHES)]

    async def open(self, backends: list[str]) -> None:
        """Set up a replica over raw Gloo, and one over a world of each backend."""
        self._gloo = self.form_gloo("training")
        self._trainings[RAW] = Training(raw_gloo.as_process_group(self._gloo, self.gloo_store))
        for backend in backends:
            world = await self.form_world(f"training-{backend}", backend)
            self._trainings[backend] = Training(world.process_group())

    async def train(self, lane: str, count: int) -> float:
        """Make ``count`` steps; return the seconds of one."""
        training, gloo = self._trainings[lane], self._gloo
        assert gloo is not None
        gloo.barrier().wait()
        began = time.perf_counter()
        for _ in range(count):
            training.step(*self._batches[len(training.losses) % NUM_BATCHES])
        gloo.barrier().wait()
        return (time.perf_counter() - began) / count

    async def loss_difference(self, lane: str) -> float:
        """Return the largest difference between the losses of this lane and of raw Gloo at the same step."""
        losses, expected = self._trainings[lane].losses, self._trainings[RAW].losses
        return max(abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=False))


def _batch(rank: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED + NUM_BATCHES * rank + number)
    inputs = torch.randn(BATCH_SIZE, WIDTH, generator=generator)
    return inputs, torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator)
