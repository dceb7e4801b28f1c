"""A node that is killed at random points of a training, and made anew each time; and what a snapshot costs it."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator
from random import Random
from statistics import median

import torch
from torch import Tensor, nn

from multiworld import remote
from multiworld.bench.report import Bound, Line

__all__ = ["line"]

EVERY_S = 1.0
BACK_S = 60.0
LONGEST_S = 0.5
MB = 1_000_000
SNAPSHOT_MB = 256


class Killer:
    """Kills the node some time after it was there, ``num_kills`` times. ``at``: when, until the program has gone on."""

    def __init__(self, node: remote.Node, num_kills: int, seed: int) -> None:
        self.left, self.at = num_kills, 0.0
        self._node, self._rng = node, Random(seed)
        self._goes_on = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def went_on(self) -> float:
        """The program has a value from behind the kill: return how long that took."""
        took_s, self.at = time.perf_counter() - self.at, 0.0
        self._goes_on.set()
        return took_s

    def _run(self) -> None:
        while self.left:
            time.sleep(self._rng.uniform(0.0, LONGEST_S))
            pid = self._node.pid
            self._goes_on.clear()
            self.at = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            self.left -= 1
            self._goes_on.wait()


class Training:
    """Dropout, a state in the optimizer, a tensor beside the commands in each step, and a question now and then."""

    def __init__(self, node: remote.Node) -> None:
        node.manual_seed(3)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(200, 128), nn.Dropout(0.2), nn.ReLU(), nn.Linear(128, 10))
        self._node, self._model = node, node.load(model)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
        self._step = 0
        self.losses: list[float] = []

    def step(self) -> None:
        generator = torch.Generator().manual_seed(self._step)
        inputs: Tensor = self._node.send(torch.randn(64, 200, generator=generator))
        labels: Tensor = self._node.send(torch.randint(10, (64,), generator=generator))
        if self._step % 7 == 0:
            inputs = inputs[inputs[:, 0] > -1.5]  # as many rows as the node says
            labels = labels[: len(inputs)]
        loss = nn.functional.cross_entropy(self._model(inputs), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._step % 3 == 0:
            self.losses.append(loss.item())
        self._step += 1

    def outcome(self) -> list[Tensor]:
        return [torch.tensor(self.losses), *(each.detach().cpu() for each in self._model.parameters())]


def line(options: argparse.Namespace) -> list[Line]:
    with remote.local(1, num_threads=1) as nodes:
        took_s, disturbed, num_steps, statistics = _disturbed(nodes, options.kills)
        undisturbed = Training(nodes[1])
        for _ in range(num_steps):
            undisturbed.step()
        pairs = zip(undisturbed.outcome(), disturbed, strict=True)
        differ = sum(not torch.equal(one, other) for one, other in pairs)
        quiet_ms, paused_ms, snapshot_s = _pause(nodes)
    return [
        Line(name=f"tensors that differ, after {num_steps} steps", unit="", value=differ, bound=Bound.at_most(0)),
        Line(
            name="kills that no recovery followed",
            unit="",
            value=options.kills - statistics.num_recoveries,
            bound=Bound.at_most(0),
        ),
        Line(name="from a kill to the next value, replay included", unit="s", value=median(took_s)),
        Line(name="the longest of these", unit="s", value=max(took_s), bound=Bound.at_most(2)),
        Line(name=f"a snapshot of {SNAPSHOT_MB} MB", unit="s", value=snapshot_s),
        Line(name="longest round trip meanwhile", unit="ms", value=paused_ms),
        Line(name="a round trip without one", unit="ms", value=quiet_ms),
    ]


def _disturbed(nodes: remote.Nodes, num_kills: int) -> tuple[list[float], list[Tensor], int, remote.RecoveryStatistics]:
    """Train until the node was killed so often; return how long each took, the outcome, and the steps."""
    took_s: list[float] = []
    num_steps = 0
    with remote.recoverable(every_s=EVERY_S) as recoverable:
        training = Training(nodes[1])
        killer = Killer(nodes[1], num_kills, seed=5)
        killer.start()
        while killer.left or killer.at:
            training.step()
            num_steps += 1
            if killer.at and recoverable.statistics[1].num_recoveries > len(took_s):
                nodes[1].synchronize()
                took_s.append(killer.went_on())
        return took_s, training.outcome(), num_steps, recoverable.statistics[1]


def _pause(nodes: remote.Nodes) -> tuple[float, float, float]:
    """Return a round trip in quiet, the longest during a snapshot (both ms), and how long that took (s)."""
    held = [nodes[1].zeros(SNAPSHOT_MB * MB // 16) for _ in range(4)]
    small = nodes[1].zeros(())
    with remote.recoverable(every_s=1000) as recoverable:
        quiet = [each for each, _ in zip(_round_trips(small), range(200), strict=False)]
        thread = threading.Thread(target=recoverable.snapshot)
        began = time.perf_counter()
        thread.start()
        during = []
        for each in _round_trips(small):
            during.append(each)
            if not thread.is_alive():
                break
        took_s = time.perf_counter() - began
    assert len(held) == 4
    return median(quiet) * 1e3, max(during) * 1e3, took_s


def _round_trips(small: Tensor) -> Iterator[float]:
    while True:
        began = time.perf_counter()
        small.add_(1).item()
        yield time.perf_counter() - began
