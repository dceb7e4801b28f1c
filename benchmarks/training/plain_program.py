"""Plain DDP on gloo, as torchrun starts it; with ``--checkpoint`` every so many steps are saved, and gone on from."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from .accumulation import accumulate, endless
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
    sampler: DistributedSampler[Sample] = DistributedSampler(task.dataset(), shuffle=True, seed=0)
    batches = endless(worker, sampler)
    while step < options.steps:
        worker.orders.begin(step)
        optimizer.zero_grad()
        loss = accumulate(worker, replicated, batches, step, world_size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        worker.committed(step, replicas=world_size, loss=loss)
        step += 1
        if options.checkpoint is not None and step % options.checkpoint_every == 0 and worker.rank == 0:
            worker.save(step, model, optimizer)
    worker.ended(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
