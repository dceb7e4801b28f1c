"""Plain DDP on gloo, as torchrun starts it; with ``--checkpoint`` every so many steps are saved, and gone on from."""

from __future__ import annotations

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from .tasks import Sample
from .worker import Worker


def main() -> None:
    worker = Worker(argparse.ArgumentParser(), int(os.environ["RANK"]))
    options, task = worker.options, worker.task
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    model = task.model(dropout=options.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr)
    step = worker.load(model, optimizer)
    replicated = DistributedDataParallel(model)
    worker.orders.watch(task.middle(model), optimizer)
    dataset = task.dataset()
    sampler: DistributedSampler[Sample] = DistributedSampler(dataset, shuffle=True, seed=0)
    micro_batches = options.global_batch // options.micro_batch // world_size
    loader = DataLoader(dataset, batch_size=options.micro_batch, sampler=sampler, drop_last=True)
    batches = iter(loader)
    while step < options.steps:
        worker.orders.begin(step)
        optimizer.zero_grad()
        total = torch.zeros(())
        for number in range(micro_batches):
            batch = next(batches, None)
            if batch is None:
                sampler.set_epoch(sampler.epoch + 1)
                batches = iter(loader)
                batch = next(batches)
            worker.computes(step, batch[2])
            is_last = number == micro_batches - 1
            with contextlib.nullcontext() if is_last else replicated.no_sync():
                loss = task.loss(replicated, batch) / micro_batches
                loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        worker.committed(step, replicas=world_size, loss=total.item())
        step += 1
        if options.checkpoint is not None and step % options.checkpoint_every == 0 and worker.rank == 0:
            worker.save(step, model, optimizer)
    worker.ended(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
