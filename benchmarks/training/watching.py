"""What our sides tell of a training, and where in it they reach the phases in which faults are ordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
from .worker import Worker

__all__ = ["around", "reporter", "watch_channel", "watch_recovery"]

handed_over = [0]
"""Bytes that this rank gave to collectives."""


def reporter(worker: Worker, counts: bool) -> Callable[[TrainingEvent], None]:
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


def watch_channel(orders: Orders) -> None:
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


def watch_recovery(orders: Orders) -> None:
    """Reach ``detect``, ``agree`` and ``form``."""

    around(Membership, "agree", before=lambda *_: orders.reach("detect"))
    around(Membership, "_announce", after=lambda *_: orders.reach("agree"))
    around(Team, "_try_to_form", before=lambda *_: orders.reach("form"))


def around(
    kind: type, name: str, *, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    """Call these with the arguments of a method, itself among them, each time it is called."""
    call = getattr(kind, name)

    def watched(*arguments: Any) -> Any:
        if before is not None:
            before(*arguments)
        result = call(*arguments)
        if after is not None:
            after(*arguments)
        return result

    setattr(kind, name, watched)
