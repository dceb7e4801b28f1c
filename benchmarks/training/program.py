"""Our side: the loop of the documentation, which tells what it commits, and obeys orders to strike itself."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from torch.utils.data import Dataset

from multiworld import training

from .orders import Orders
from .tasks import Sample
from .watching import reporter, watch_channel, watch_recovery
from .worker import Worker, digest_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--min-replicas", type=int, default=1)
    parser.add_argument("--lease-s", type=float)
    parser.add_argument("--count-resources", action="store_true")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--digests", action="store_true", help="write down the state before each step")
    parser.add_argument("--sync", choices=("diloco",))
    parser.add_argument("--sync-every", type=int, default=50)
    parser.add_argument("--sync-fragments", type=int, default=1)
    parser.add_argument("--sync-compress", choices=("bfloat16", "int8"))
    parser.add_argument("--compare-every", type=int, default=0)
    worker = Worker(parser, int(os.environ["RANK"]))
    options, task = worker.options, worker.task
    watch_channel(worker.orders)
    watch_recovery(worker.orders)
    job = training.join(
        "bench",
        min_replicas=options.min_replicas,
        exact=options.exact,
        seed=0,
        progress=False,
        **_join_options(options),
    )
    model = job.replicate(task.model(dropout=options.dropout), sync=_sync(options))
    optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=task.lr))
    loader = job.loader(
        SlowDataset(task.dataset(), worker.orders),
        global_batch=options.global_batch,
        micro_batch=options.micro_batch,
        shuffle=True,
        seed=0,
    )
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    job.track(scheduler=scheduler)
    job.listen(reporter(worker, options.count_resources))
    worker.orders.watch(task.middle(model), optimizer)
    for step in job.steps(loader, total=options.steps):
        if options.digests:
            worker.journal.write(
                "state", step=step.index, digest=digest_of([model.state_dict(), optimizer.state_dict()])
            )
        worker.orders.begin(step.index)
        worker.orders.flip(model)
        if options.pause_s:
            time.sleep(options.pause_s)
        with step:
            for batch in step:
                worker.computes(step.index, batch[2])
                with worker.orders.slowed("backward"):
                    loss = task.loss(model, batch)
                    loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    worker.ended(model, optimizer=digest_of(optimizer.state_dict()))


def _sync(options: argparse.Namespace) -> training.DiLoCo | None:
    if options.sync is None:
        return None
    return training.DiLoCo(every=options.sync_every, fragments=options.sync_fragments, compress=options.sync_compress)


def _join_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was asked for and is not the default."""
    found: dict[str, Any] = {}
    if options.lease_s is not None:
        found["lease_s"] = options.lease_s
    if options.save_every:
        found["checkpoint"] = training.Checkpoint(options.checkpoint, every_steps=options.save_every)
    if options.compare_every:
        found["health"] = training.Health(compare_every=options.compare_every)
    return found


class SlowDataset(Dataset[Sample]):
    """A dataset whose samples take longer once that was ordered."""

    def __init__(self, dataset: Dataset[Sample], orders: Orders) -> None:
        self._dataset, self._orders = dataset, orders

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        if not self._orders.slows("data"):  # as always where the time of a step is measured
            return self._dataset[index]
        with self._orders.slowed("data"):
            return self._dataset[index]


if __name__ == "__main__":
    main()
