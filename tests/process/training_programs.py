"""One replica of a training as the worker of a test, which is held where the test wants to kill or stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import multiworld as mw
from multiworld.testing.resources import Resources, measure
from multiworld.testing.worker import report, wait_command
from multiworld.training.errors import SampleError
from multiworld.training.events import (
    MemberLost,
    MembershipChanged,
    RecoveryPhase,
    StepCommitted,
    TrainingEnded,
    TrainingEvent,
)
from multiworld.training.job import join

NUM_MICRO_BATCHES, ROWS, LR = 6, 3, 0.05
NUM_WARM = 4  # memberships after which a process holds no more than before


class Net(nn.Module):
    """Has a buffer that each forward changes, and as much ballast as a test wants to have transferred."""

    def __init__(self, ballast: int = 0, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.register_buffer("ballast", torch.zeros(ballast))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


def make_model(ballast: int = 0, hidden: int = 8) -> Net:
    torch.manual_seed(0)
    return Net(ballast, hidden).double()


def rows(step: int, micro_batch: int) -> Tensor:
    """``[ROWS, 4]``"""
    generator = torch.Generator().manual_seed(1000 * step + micro_batch)
    return torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    return loss


def train_alone(total: int) -> Tensor:
    """Return the parameters after ``total`` steps of plain PyTorch in this process: ``[num_parameters]``."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine more of them wait for each other
    for step in range(total):
        optimizer.zero_grad()
        for number in range(NUM_MICRO_BATCHES):
            (loss_of(model, rows(step, number)) / NUM_MICRO_BATCHES).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.set_num_threads(num_threads)
    return flat(model)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Rows:
    """A StepLoader over ``rows`` without an end."""

    global_batch, micro_batch = NUM_MICRO_BATCHES * ROWS, ROWS
    num_micro_batches = NUM_MICRO_BATCHES
    num_steps = None

    def epoch_of(self, step: int) -> int:
        return 0

    def samples(self, step: int) -> Sequence[Sequence[str]]:
        return [[f"{step}.{number}.{row}" for row in range(ROWS)] for number in range(NUM_MICRO_BATCHES)]

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, tuple[int, Tensor]]]:
        for number in micro_batches:
            yield number, (number, rows(step, number))

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        pass

    def digest(self) -> str:
        return "rows"

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def serve_store(port: int) -> None:
    """Serve a store until this process is killed."""
    manager = mw.WorldManager()
    report("serving", url=manager.serve_store(f"tcp://127.0.0.1:{port}"))
    wait_command()
    manager.close()


class _Holder:
    """Holds this process at the places that the test has named, until it is told to go on."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = list(places)

    def at(self, place: str) -> None:
        if place in self._places:
            self._places.remove(place)
            report("held", place=place)
            wait_command()


class _Settling:
    """Measures what this process holds once what is about to be given back is gone.

    A thread that sends a newcomer the state, or a connection that was closed just now, is gone a moment later. What
    stays longer than ``settle_s`` is counted.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._first: list[Resources] = []

    def measure(self) -> Resources:
        give_up_at = time.monotonic() + self._settle_s
        while self._is_more(held := measure()) and time.monotonic() < give_up_at:
            time.sleep(0.001)
        if len(self._first) < NUM_WARM:
            self._first.append(held)
        return held

    def _is_more(self, held: Resources) -> bool:
        if held.threads > len(held.thread_names):  # ended in Python, and the system still counts it
            return True
        first = self._first
        return len(first) == NUM_WARM and (
            held.threads > max(each.threads for each in first)
            or held.num_descriptors > max(each.num_descriptors for each in first)
        )


def train(
    store: str | None,
    rank: int,
    size: int,
    total: int,
    hold: Sequence[str] = (),
    ballast: int = 0,
    hidden: int = 8,
    raises: str = "",
    breaks_after: int | None = None,
    steps_outside: bool = False,
    every_s: float = 0.0,
    settle_s: float = 0.0,
    **options: Any,
) -> dict[str, Any]:
    """Train, and return ``{"final": parameters}`` at the end: ``[num_parameters]``.

    ``hold``: places, as ``forward 3``, ``optimizer 3``, ``agree``. ``raises``: a place where the program raises.
    ``breaks_after``: a step after which it leaves the loop.
    ``every_s``: at least so long does a step take. ``settle_s``: with it, ``held`` tells what this process holds after
    the first step each time that all members are there; what is about to be given back has so long.
    """
    torch.set_num_threads(1)
    holder = _Holder(hold)
    settling = _Settling(settle_s)
    changed: list[int] = []  # the numbers of members since what is held was told

    def heard(event: TrainingEvent) -> None:
        if isinstance(event, RecoveryPhase):
            report("phase", name=event.name, step=event.step, took_s=event.took_s)
            holder.at(event.name)
        elif isinstance(event, MembershipChanged):
            report("members", ranks=event.ranks, step=event.step)
            changed.append(len(event.ranks))
            holder.at(f"members {len(event.ranks)}")
        elif isinstance(event, StepCommitted):
            report("committed", step=event.step, replicas=event.replicas, redone=event.redone)
            if settle_s and changed and changed[-1] == event.replicas == size:
                changed.clear()
                held = settling.measure()
                report(
                    "held",
                    replicas=event.replicas,
                    num_descriptors=held.num_descriptors,
                    threads=held.threads,
                    resident_bytes=held.resident_bytes,
                )
        elif isinstance(event, MemberLost):
            report("lost", rank=event.lost_rank, cause=event.cause)
        elif isinstance(event, TrainingEnded):
            report("ended", reason=event.reason, error=event.error)

    options.setdefault("gather_s", 60.0)  # on a busy machine one may start much later
    job = join("t", rank=rank, world_size=size, store=store, **options)
    with job:
        job.listen(heard)
        model = job.replicate(make_model(ballast, hidden))
        optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9))
        if steps_outside:
            optimizer.step()
        pace = threading.Event()
        report("ready")
        for step in job.steps(Rows(), total=total):
            numbers = []
            with step:
                for number, inputs in step:
                    loss = loss_of(model, inputs)
                    holder.at(f"forward {step.index}")
                    if raises == f"forward {step.index}":
                        raise ValueError(f"bad sample in micro-batch {number}")
                    if raises == f"load {step.index}":
                        raise SampleError(step.index, number, ("13",), "OSError: no file for 13", "")
                    loss.backward()  # type: ignore[no-untyped-call]
                    holder.at(f"backward {step.index}")
                    step.record(loss=loss)
                    numbers.append(number)
                holder.at(f"optimizer {step.index}")
                if raises != f"no optimizer {step.index}":
                    optimizer.step()
            if step.committed:
                report("did", step=step.index, numbers=numbers, loss=step.values["loss"])
                holder.at(f"after {step.index}")
                if raises == f"after {step.index}":
                    raise ValueError("no evaluation")
                if step.index == breaks_after:
                    break
            pace.wait(every_s)
        return {"final": flat(model).tolist()}
