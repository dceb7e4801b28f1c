"""Checkpoints that tests write in their own process, with the code that the writer process runs."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import nn

from multiworld.training.checkpoint.disk import Disk
from multiworld.training.checkpoint.finding import Found, look
from multiworld.training.checkpoint.flat import flatten
from multiworld.training.checkpoint.orders import Write
from multiworld.training.checkpoint.sharing import attempt_of
from multiworld.training.checkpoint.staging import Staging
from multiworld.training.checkpoint.writing import Files, remove_surplus, write_checkpoint
from multiworld.training.state import TrainingState


class Trained:
    """A small model with AdamW and a scheduler, and their state: real parts, of all kinds of values."""

    def __init__(self, seed: int = 0, width: int = 4) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
        for parameter in self.model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer)
        self.state = TrainingState()
        self.state.add("model.net", self.model)
        self.state.add("optimizer.adamw", self.optimizer)
        self.state.add("tracked.scheduler", self.scheduler)

    def train(self, steps: int) -> Trained:
        for _ in range(steps):
            inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(self.state.step))
            self.model(inputs).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.state.step += 1
        return self

    def __eq__(self, other: object) -> bool:
        """Whether all of it is bit-equal."""
        return isinstance(other, Trained) and equal(self.state.capture()["parts"], other.state.capture()["parts"])

    __hash__ = object.__hash__


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def nobody_gone(_timeout_s: float) -> Collection[int]:
    return ()


def write(
    directory: Path,
    state: TrainingState,
    *,
    writer: int = 0,
    num_writers: int = 1,
    keep: int = 3,
    disk: Disk | None = None,
    job: str = "job",
    generation: int = 1,
    timeout_s: float = 5.0,
    gone: Callable[[float], Collection[int]] = nobody_gone,
    files: Files | None = None,
) -> Path | None:
    """Stage and write one checkpoint of the state as it is now, and remove the surplus. ``files``: of its process."""
    disk = disk or Disk(sync=False)
    with contextlib.closing(Staging()) as staging:
        staged = staging.take(flatten(state.capture()), writer=writer, num_writers=num_writers)
        size = os.fstat(staging.fd).st_size
        memory = mmap.mmap(staging.fd, size) if size else None
        order = Write(
            directory=str(directory),
            job=job,
            step=state.step,
            attempt=attempt_of(state.step, generation, [f"m{index}" for index in range(num_writers)]),
            writer=writer,
            num_writers=num_writers,
            keep=keep,
            sync=False,
            timeout_s=timeout_s,
        )
        path = write_checkpoint(order, staged, memory, disk, files or Files(), gone)
    if path is not None:
        remove_surplus(order, disk)
    return path


def steps_in(directory: Path) -> list[int]:
    """Return the steps of the checkpoints with a whole manifest, newest first."""
    found, problems = look(directory)
    assert not problems
    return [each.step for each in found]


def only(directory: Path) -> Found:
    (found,), _ = look(directory)
    return found
