"""The peers' step up to the optimizer: micro-batches without end, and their gradients in one reduction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from .tasks import Sample
from .worker import Worker


def endless(worker: Worker, sampler: DistributedSampler[Sample]) -> Iterator[Any]:
    """Yield this rank's micro-batches, epoch after epoch."""
    loader = DataLoader(worker.task.dataset(), batch_size=worker.options.micro_batch, sampler=sampler, drop_last=True)
    while True:
        yield from loader
        sampler.set_epoch(sampler.epoch + 1)


def accumulate(worker: Worker, replicated: Any, batches: Iterator[Any], step: int, world_size: int) -> float:
    """Go forward and backward for this rank's share of the step, and return the sum of the weighted losses."""
    micro_batches = worker.options.global_batch // worker.options.micro_batch // world_size
    total = torch.zeros(())
    for number in range(micro_batches):
        batch = next(batches)
        worker.computes(step, batch[2])
        is_last = number == micro_batches - 1
        with contextlib.nullcontext() if is_last else replicated.no_sync():
            loss = worker.task.loss(replicated, batch) / micro_batches
            loss.backward()
        total += loss.detach()
    return total.item()
