"""A captured training step against the same step here, in turns."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from multiworld import remote
from multiworld.bench.report import Bound, Line

__all__ = ["line"]

NUM_OPERATIONS = 38
NUM_STEPS = 400
TURNS = 7
US = 1e6

Work = Callable[[Tensor, Tensor], Tensor]


def line(options: argparse.Namespace) -> list[Line]:
    torch.set_num_threads(1)
    inputs, wanted = torch.randn(16, 20), torch.randn(16, 4)
    here = _training(_model())
    with remote.local(1, num_threads=1) as nodes:
        model = nodes[1].load(_model())
        there = _training(model)
        x, y = nodes[1].send(inputs), nodes[1].send(wanted)
        there(x, y)
        with remote.capture(x, y) as step:
            step.returns(there(x, y))
        if f"{NUM_OPERATIONS} operations" not in repr(step):
            raise AssertionError(f"this measures a step of {NUM_OPERATIONS} operations, not {step!r}")
        here(inputs, wanted)  # it makes its optimizer's state, as the first one there did
        ratios, cpu_us, replayed_us, issued_ratios = [], [], [], []
        for _ in range(max(TURNS, options.alternations)):
            here_s, _ = _timed(lambda: here(inputs, wanted), nodes[1].synchronize)
            there_s, cpu_s = _timed(lambda: step(x, y), nodes[1].synchronize)
            issued_s, _ = _timed(lambda: there(x, y), nodes[1].synchronize)
            ratios.append(there_s / here_s)
            issued_ratios.append(issued_s / here_s)
            replayed_us.append(there_s * US)
            cpu_us.append(cpu_s * US)
    return [
        Line(
            name=f"a replay of {NUM_OPERATIONS} operations, over the step here",
            unit="×",
            value=median(ratios),
            bound=Bound.at_most(1.1),
        ),
        Line(name="the master's CPU for a replay", unit="µs", value=median(cpu_us), bound=Bound.at_most(60)),
        Line(name="a replay", unit="µs", value=median(replayed_us)),
        Line(name="the step issued, over the step here", unit="×", value=median(issued_ratios)),
    ]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.Linear(32, 4))


def _training(model: nn.Module) -> Work:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def work(inputs: Tensor, wanted: Tensor) -> Tensor:
        loss = functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return work


def _timed(work: Callable[[], object], wait: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of one step: from its start to the next one's, and of the master's CPU."""
    wait()
    began, cpu_began = time.perf_counter(), time.thread_time()
    for _ in range(NUM_STEPS):
        work()
    cpu_s = time.thread_time() - cpu_began
    wait()
    return (time.perf_counter() - began) / NUM_STEPS, cpu_s / NUM_STEPS
