"""Our side: the loop of the documentation, which tells what it commits, and obeys orders to strike itself."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from multiworld import training
from multiworld.process.facts import count_threads, open_descriptors, rss_bytes
from multiworld.training.events import (
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    MembershipChanged,
    RecoveryPhase,
    ReplicasDiverged,
    SlowRank,
    StateReceived,
    StepCommitted,
    TrainingEvent,
)
from multiworld.training.recovery.membership import Membership
from multiworld.training.recovery.team import Team
from multiworld.training.recovery.transfer import TAG
from multiworld.world.world import World

from .orders import Orders
from .tasks import Sample
from .worker import Worker, digest_of

handed_over = [0]
"""Bytes that this rank gave to collectives."""


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
    _watch_channel(worker.orders)
    _watch_recovery(worker.orders)
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
    job.listen(_reporter(worker, options.count_resources))
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


def _reporter(worker: Worker, counts: bool) -> Callable[[TrainingEvent], None]:
    def tell(event: TrainingEvent) -> None:
        if isinstance(event, StepCommitted):
            loss = event.values.get("loss")
            more: dict[str, Any] = {"redone": event.redone, "generation": event.generation}
            more["bytes"] = handed_over[0]
            if counts and event.step % 10 == 0:
                more["resources"] = (len(open_descriptors()), count_threads(), rss_bytes())
            worker.committed(event.step, replicas=event.replicas, loss=loss, **more)
        elif isinstance(event, SlowRank):
            worker.journal.write("slow", step=event.step, slow=event.slow_rank, factor=event.factor, part=event.part)
        elif isinstance(event, ReplicasDiverged):
            worker.journal.write("diverged", step=event.step, wrong=event.wrong, removed=event.removed)
        elif isinstance(event, CheckpointSaved):
            worker.journal.write("saved", step=event.step, stall_s=event.stall_s, took_s=event.took_s)
        elif isinstance(event, CheckpointFailed):
            worker.journal.write("not saved", step=event.step, reason=event.reason)
        elif isinstance(event, CheckpointLoaded):
            worker.journal.write("loaded", step=event.step)
        elif isinstance(event, RecoveryPhase):
            worker.journal.write("phase", name=event.name, step=event.step, took_s=event.took_s)
        elif isinstance(event, MembershipChanged):
            if event.gone:
                worker.orders.redo()
            worker.journal.write("members", step=event.step, ranks=event.ranks, generation=event.generation)
        elif isinstance(event, StateReceived):
            worker.journal.write("state", step=event.step, size_bytes=event.size_bytes, took_s=event.took_s)
        else:
            worker.journal.write(type(event).__name__, step=getattr(event, "step", None))

    return tell


def _watch_channel(orders: Orders) -> None:
    """Reach ``all-reduce``, ``commit`` and ``transfer`` right after the operation of that phase was begun."""

    def after(name: str, sent: int | None, phase: Callable[..., str | None]) -> None:
        begin = getattr(World, name)

        def watched(world: World, *arguments: Any, **options: Any) -> Any:
            operation = begin(world, *arguments, **options)
            if sent is not None:
                tensors = arguments[sent]
                handed_over[0] += sum(each.nbytes for each in ([tensors] if torch.is_tensor(tensors) else tensors))
            reached = phase(*arguments)
            if reached is not None:
                orders.reach(reached)
            return operation

        setattr(World, name, watched)

    after("start_all_reduce", 0, lambda tensor, *_: "commit" if tensor.dtype is torch.uint8 else "all-reduce")
    after("start_all_to_all", 1, lambda *_: "all-reduce")
    after("start_all_gather", 1, lambda rows, mine, *_: "commit" if mine.dtype is torch.uint8 else None)
    after("start_send_tensors", None, lambda tensors, peer, tag, *_: "transfer" if tag == TAG else None)
    after("start_recv_tensors", None, lambda peer, tag, *_: "receive" if tag == TAG else None)


def _watch_recovery(orders: Orders) -> None:
    """Reach ``detect``, ``agree`` and ``form``."""

    def around(kind: type, name: str, *, before: str = "", after: str = "") -> None:
        call = getattr(kind, name)

        def watched(*arguments: Any) -> Any:
            if before:
                orders.reach(before)
            result = call(*arguments)
            if after:
                orders.reach(after)
            return result

        setattr(kind, name, watched)

    around(Membership, "agree", before="detect")
    around(Membership, "_announce", after="agree")
    around(Team, "_try_to_form", before="form")


if __name__ == "__main__":
    main()
