"""One replica of torchft's DDP loop. Its lighthouse's address is in the environment, as torchft wants it."""

from __future__ import annotations

import argparse
import importlib
import os
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.utils.data import DistributedSampler

from .accumulation import accumulate, endless
from .tasks import Sample
from .worker import Worker

OPERATION_S, MANAGER_S = 5, 30  # as in its examples; the first must be shorter


def main() -> None:
    torchft: Any = importlib.import_module("torchft")
    rank, world_size = int(os.environ["REPLICA"]), int(os.environ["REPLICAS"])
    worker = Worker(argparse.ArgumentParser(), rank)
    options, task = worker.options, worker.task
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = task.model(dropout=options.dropout)
    inner = torch.optim.AdamW(model.parameters(), lr=task.lr)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=OPERATION_S)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica{rank}",
        timeout=timedelta(seconds=MANAGER_S),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
    )
    replicated = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, inner)
    worker.orders.watch(task.middle(model), inner)
    sampler: DistributedSampler[Sample] = DistributedSampler(
        task.dataset(), num_replicas=world_size, rank=rank, shuffle=True, seed=0
    )
    batches = endless(worker, sampler)
    while (step := manager.current_step()) < options.steps:
        worker.orders.begin(step)
        optimizer.zero_grad()
        loss = accumulate(worker, replicated, batches, step, world_size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if manager.current_step() != step:
            worker.committed(step, replicas=manager.num_participants(), loss=loss)
    worker.ended(model)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
