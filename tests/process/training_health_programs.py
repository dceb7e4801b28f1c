"""A training in which one rank is slow, wrong or asked to leave; each process tells what it hears. Run as workers."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from multiworld.testing.worker import report
from multiworld.training.engine.step import Step
from multiworld.training.events import (
    BadStep,
    LeaveAsked,
    MembershipChanged,
    Miscomputed,
    ReplicasDiverged,
    SlowRank,
    StateReceived,
    StepCommitted,
    TrainingEvent,
)
from multiworld.training.health.options import Health, Replay
from multiworld.training.job import join
from multiworld.training.sync.strategies import LocalSGD

from .training_programs import LR, Rows, flat, loss_of, make_model

TOLD = (BadStep, LeaveAsked, MembershipChanged, Miscomputed, ReplicasDiverged, SlowRank, StateReceived, StepCommitted)
WORK_S = {"data": 0.004, "forward": 0.008, "backward": 0.008}
"""What a micro-batch of a paced training takes at least, on every rank."""


class PacedRows(Rows):
    """As long as it loads, the program sleeps: that is its work, and takes the same time on a busy machine."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, tuple[int, Tensor]]]:
        for each in super().fetch(step, micro_batches):
            time.sleep(self._work_s)
            yield each


def train_with_fault(
    store: str,
    rank: int,
    size: int,
    total: int,
    fault: str = "",
    at: int = -1,
    paced: bool = False,
    health: Mapping[str, Any] | None = None,
    replay: int = 0,
    meet_every: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """``fault``, in step ``at``: ``flip`` a bit after it, ``nan`` or ``spike`` in its loss, ``miscompute`` it again,
    SIGTERM (``term``) in its forward. From the beginning: ``slow data`` and ``slow backward``.
    """
    torch.set_num_threads(1)
    work_s = {part: (seconds if paced else 0.0) for part, seconds in WORK_S.items()}
    if fault.startswith("slow"):
        work_s[fault.removeprefix("slow ")] += sum(WORK_S.values())  # so it is twice as slow as a whole

    def heard(event: TrainingEvent) -> None:
        if isinstance(event, TOLD):
            report(type(event).__name__, **dataclasses.asdict(event))

    watched = Health(**(health or {}))
    again = Replay(every=replay) if replay else None
    with join("t", rank=rank, world_size=size, store=store, health=watched, replay=again, **options) as job:
        job.listen(heard)
        model = job.replicate(make_model(), sync=LocalSGD(every=meet_every) if meet_every else None)
        model.layers[0].weight.register_hook(lambda grad: time.sleep(work_s["backward"]))  # type: ignore[operator]
        optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9))
        report("ready")
        is_due = True
        for step in job.steps(PacedRows(work_s["data"]), total=total):
            is_now = is_due and step.index == at
            with step:
                seen: list[int] = []
                for number, inputs in step:
                    time.sleep(work_s["forward"])
                    loss = loss_of(model, inputs)
                    if is_now and fault in ("nan", "spike"):
                        loss = loss * (torch.nan if fault == "nan" else 1e6)
                    if is_now and fault == "term":
                        os.kill(os.getpid(), signal.SIGTERM)
                    loss.backward()  # type: ignore[no-untyped-call]
                    if is_now and fault == "miscompute" and number in seen:
                        _flip(model.layers[3].weight.grad)  # type: ignore[arg-type]
                    step.record(loss=loss)
                    seen.append(number)
                _apply(optimizer, step)
            if is_now and step.committed and fault == "flip":
                _flip(model.layers[3].weight)  # type: ignore[arg-type]
            is_due = is_due and not (is_now and bool(seen))
        final = flat(model).tolist()
        buffers = {name: each.tolist() for name, each in model.named_buffers()}
    return {"final": final, "buffers": buffers, "step": job.state.step}


def _apply(optimizer: torch.optim.Optimizer, step: Step) -> None:
    assert step.committed
    optimizer.step()


def _flip(tensor: Tensor) -> None:
    """One bit of one value, in the middle of its fraction."""
    with torch.no_grad():
        tensor.detach().view(torch.int64)[0, 5] ^= 1 << 40
