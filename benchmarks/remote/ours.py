"""Remote tensors, as users write them. Variants: the backend for large tensors, or none for the default."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from multiworld import remote

from .system import SHAPE, START_S

__all__ = ["deploy"]

BACKENDS = {"": "auto", "shm": "auto", "tcp": "tcp"}  # on one host the default is shared memory


class OurNodes:
    """Sums are remote tensors, made by plain ``x + y``. The nodes' own numbers begin at 1."""

    burst = 20_000
    deaths: tuple[type[Exception], ...] = (remote.NodeDeadError,)

    def __init__(self, nodes: remote.Nodes) -> None:
        self._nodes = list(nodes.values())
        self._sums = [node.zeros(*SHAPE) for node in self._nodes]
        self._ones = [node.ones(*SHAPE) for node in self._nodes]
        self._big = self._sums[0]

    def add(self, node: int, times: int) -> None:
        x, one = self._sums[node], self._ones[node]
        for _ in range(times):
            x = x + one
        self._sums[node] = x

    def value(self, node: int, timeout_s: float) -> float:
        return float(self._sums[node].fetch()[0, 0])

    def add_and_fetch(self, node: int) -> torch.Tensor:
        self._sums[node] = self._sums[node] + self._ones[node]
        return self._sums[node].fetch()  # type: ignore[no-any-return]

    def send(self, node: int, tensor: torch.Tensor) -> None:
        self._big = self._nodes[node].send(tensor)
        self._nodes[node].synchronize()

    def fetch(self, node: int) -> torch.Tensor:
        return self._big.fetch()  # type: ignore[no-any-return]

    def pid(self, node: int) -> int:
        return self._nodes[node].pid

    def noticed_s(self) -> float:
        return math.nan


@contextmanager
def deploy(num_nodes: int, variant: str) -> Iterator[OurNodes]:
    nodes = remote.local(num_nodes, backend=BACKENDS[variant], num_threads=1, timeout_s=START_S)
    try:
        yield OurNodes(nodes)
    finally:
        nodes.close()
