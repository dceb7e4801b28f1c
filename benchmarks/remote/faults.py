"""Faults of nodes, with one side: a node stopped or cut off, a failed operation, and a long run with kills."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from multiworld import remote
from multiworld.bench.report import Bound, Line
from multiworld.process.facts import resident_bytes
from multiworld.remote.session import origins

__all__ = ["failed", "soak", "stopped"]

LEASE_S = 1.0
NUM_DEPENDENTS = 1000
DONE_S = 60.0
MB = 1e6


class Adders:
    """A thread for each node that adds one all the time. ``wrong``: nodes whose sum was not what was issued."""

    def __init__(self, nodes: dict[int, remote.Node]) -> None:
        self.done = dict.fromkeys(nodes, 0)
        self.wrong = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._add, args=each) for each in nodes.items()]

    def __enter__(self) -> Adders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def rate_for(self, seconds: float) -> float:
        """Return how many additions were made in a second, meanwhile."""
        began, before = time.perf_counter(), sum(self.done.values())
        time.sleep(seconds)
        return (sum(self.done.values()) - before) / (time.perf_counter() - began)

    def _add(self, number: int, node: remote.Node) -> None:
        total, one, issued = node.zeros(20, 20), node.ones(20, 20), 0
        while not self._ended.is_set():
            for _ in range(100):
                total = total + one
            issued += 100
            # Exact in float32 up to 2 ** 24.
            if issued % 2**20 < 100:
                total, issued = node.zeros(20, 20), 0
            self.wrong += total[0, 0].item() != issued
            self.done[number] += 100


def stopped(options: argparse.Namespace) -> list[Line]:
    took_s, rates, wrong = [], [], 0
    for _ in range(options.alternations):
        with _nodes(4) as nodes:
            x = nodes[1].zeros(20, 20)
            nodes[1].synchronize()
            with Adders({number: nodes[number] for number in (2, 3, 4)}) as others:
                others.rate_for(options.seconds / 2)
                before = others.rate_for(options.seconds)
                began = time.perf_counter()
                os.kill(nodes[1].pid, signal.SIGSTOP)
                try:
                    x.fetch()
                except remote.NodeDeadError:
                    took_s.append(time.perf_counter() - began)
                time.sleep(max(0.0, began + LEASE_S + 1 - time.perf_counter()))
                rates.append(others.rate_for(options.seconds) / before)
            wrong += others.wrong
    return [
        Line(name="SIGSTOP until the error", unit="s", value=median(took_s), bound=Bound.at_most(LEASE_S + 0.5)),
        Line(name="throughput of the others after it, over before", unit="", value=median(rates)),
        Line(name="nodes with a wrong sum", unit="", value=wrong, bound=Bound.at_most(0)),
    ]


def failed(options: argparse.Namespace) -> list[Line]:
    with _nodes(1) as nodes:
        node = nodes[1]
        node.manual_seed(1)
        lost = node.zeros(3).index_select(0, node.send(torch.tensor([9])))
        kept = node.zeros(3)
        for _ in range(NUM_DEPENDENTS):
            lost = torch.rand_like(lost) + lost
            kept = kept + 1
        drawn = node.rand(4)
        try:
            message = f"no error, but {lost.fetch()}"
        except remote.RemoteOperationError as error:
            message = str(error)
        torch.manual_seed(1)
        ran = float(not torch.equal(drawn.fetch(), torch.rand(4)))  # a dependent would have drawn from the generator
        parts = ("aten.index_select.default", "node 1", f"{__file__}:", "out of range")
        missing = sum(part not in message for part in parts)
        incomplete = NUM_DEPENDENTS - kept[0].item()
        failures = nodes.statistics.num_failures
    return [
        Line(name="dependents that ran", unit="", value=ran, bound=Bound.at_most(0)),
        Line(name="independents that did not", unit="", value=incomplete, bound=Bound.at_most(0)),
        Line(name="failures that were told", unit="", value=failures, bound=Bound.at_most(1)),
        Line(name="parts that the message lacks", unit="", value=missing, bound=Bound.at_most(0)),
        Line(name="its line, for each operation", unit="µs", value=_origin_us(), bound=Bound.at_most(1)),
    ]


def _origin_us(times: int = 20_000) -> float:
    """Return the CPU time of finding the line, three frames below the user's, as it is in a dispatch."""

    def two() -> None:
        origins.origin(sys._getframe(0))

    spent = []
    for _ in range(9):
        began = time.thread_time()
        for _ in range(times):
            two()
        middle = time.thread_time()
        for _ in range(times):
            pass
        spent.append((2 * middle - began - time.thread_time()) / times)
    return min(spent) * 1e6


def soak(options: argparse.Namespace) -> list[Line]:
    """Kill one node after the other while all add. A sum whose node is lost begins again in the next generation."""
    lost_commands = kills = operations = 0
    with _nodes(2) as nodes:
        pids = []
        sums = {number: _Sum(node) for number, node in nodes.items()}
        began = next_kill = time.monotonic()
        next_kill += options.kill_every_s
        grown_from = 0.0
        while operations < options.operations:
            for number, each in sums.items():
                try:
                    operations += each.add(1000)
                    lost_commands += not each.is_right()
                except remote.NodeDeadError:
                    nodes[number].wait_alive(DONE_S)
                    each.begin()
            if not grown_from and operations > options.operations / 10:
                grown_from = resident_bytes() / MB
            if time.monotonic() > next_kill:
                pids.append(nodes[1 + kills % 2].pid)
                os.kill(pids[-1], signal.SIGKILL)
                kills += 1
                next_kill += options.kill_every_s
        grown = resident_bytes() / MB - grown_from
        took_s = time.monotonic() - began
        nodes.wait_alive(DONE_S)
        left = sum(_left_on(node, each) for node, each in zip(nodes.values(), sums.values(), strict=True))
        pids += [node.pid for node in nodes.values()]
    orphans = sum(os.path.exists(f"/proc/{pid}") for pid in pids)
    return [
        Line(name=f"operations in {took_s:.0f} s, with {kills} kills", unit="", value=operations),
        Line(name="sums that lack a command", unit="", value=lost_commands, bound=Bound.at_most(0)),
        Line(name="tensors on nodes without a handle", unit="", value=left, bound=Bound.at_most(0)),
        Line(name="the master grew by", unit="MB", value=grown, bound=Bound.at_most(50)),
        Line(name="orphans", unit="", value=orphans, bound=Bound.at_most(0)),
    ]


class _Sum:
    def __init__(self, node: remote.Node) -> None:
        self._node = node
        self.begin()

    def begin(self) -> None:
        self._issued = 0
        try:
            self._total, self._one = self._node.zeros(20, 20), self._node.ones(20, 20)
        except remote.NodeDeadError:
            self._node.wait_alive(DONE_S)
            self.begin()

    def add(self, times: int) -> int:
        for _ in range(times):
            self._total = self._total + self._one
        self._issued += times
        return times

    def is_right(self) -> bool:
        right = bool(self._total[0, 0].item() == self._issued)
        if self._issued > 2**23:
            self.begin()
        return right


def _left_on(node: remote.Node, mine: _Sum) -> int:
    """Return how many tensors the node has once nothing here refers to one."""
    del mine._total, mine._one
    gc.collect()
    for _ in range(2):  # what is freed goes behind the first
        node.synchronize()
    return node.statistics.num_tensors


@contextmanager
def _nodes(num_nodes: int) -> Iterator[remote.Nodes]:
    nodes = remote.local(num_nodes, lease_s=LEASE_S, num_threads=1)
    try:
        yield nodes
    finally:
        nodes.close()
