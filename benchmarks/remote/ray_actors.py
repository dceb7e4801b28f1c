"""Ray, in its own interpreter: an actor for each node.

Variants: ``actor`` keeps its tensors as attributes, and ``ref`` makes each sum an object, given to the next call as an
``ObjectRef``.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from .system import SHAPE, START_S

__all__ = ["deploy"]

ray, exceptions = (cast("Any", importlib.import_module(name)) for name in ("ray", "ray.exceptions"))  # only its own
STORE_BYTES = 2 << 30


class Node:
    """What runs in the actor's process."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.sum, self.one, self.big = torch.zeros(SHAPE), torch.ones(SHAPE), torch.zeros(0)

    def add(self) -> None:
        self.sum = self.sum + self.one

    def get(self) -> torch.Tensor:
        return self.sum

    def add_and_get(self) -> torch.Tensor:
        self.add()
        return self.sum

    def added(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.one

    def put(self, tensor: torch.Tensor) -> None:
        self.big = tensor

    def get_big(self) -> torch.Tensor:
        return self.big

    def pid(self) -> int:
        return os.getpid()


class RayNodes:
    """Sums are attributes of the actors."""

    burst = 1000
    deaths: tuple[type[Exception], ...] = (exceptions.RayActorError,)

    def __init__(self, num_nodes: int) -> None:
        self._actors = [ray.remote(num_cpus=0)(Node).remote() for _ in range(num_nodes)]
        ray.get([actor.pid.remote() for actor in self._actors], timeout=START_S)

    def add(self, node: int, times: int) -> None:
        actor = self._actors[node]
        for _ in range(times):
            actor.add.remote()

    def value(self, node: int, timeout_s: float) -> float:
        return float(ray.get(self._actors[node].get.remote(), timeout=timeout_s)[0, 0])

    def add_and_fetch(self, node: int) -> torch.Tensor:
        return ray.get(self._actors[node].add_and_get.remote())  # type: ignore[no-any-return]

    def send(self, node: int, tensor: torch.Tensor) -> None:
        ray.get(self._actors[node].put.remote(tensor))

    def fetch(self, node: int) -> torch.Tensor:
        return ray.get(self._actors[node].get_big.remote())  # type: ignore[no-any-return]

    def pid(self, node: int) -> int:
        return int(ray.get(self._actors[node].pid.remote()))

    def noticed_s(self) -> float:
        return math.nan


class ReferencedNodes(RayNodes):
    """Each sum is an object in Ray's store."""

    burst = 500

    def __init__(self, num_nodes: int) -> None:
        super().__init__(num_nodes)
        self._sums = [ray.put(torch.zeros(SHAPE)) for _ in self._actors]

    def add(self, node: int, times: int) -> None:
        actor, x = self._actors[node], self._sums[node]
        for _ in range(times):
            x = actor.added.remote(x)
        self._sums[node] = x

    def value(self, node: int, timeout_s: float) -> float:
        return float(ray.get(self._sums[node], timeout=timeout_s)[0, 0])

    def add_and_fetch(self, node: int) -> torch.Tensor:
        self.add(node, 1)
        return ray.get(self._sums[node])  # type: ignore[no-any-return]


@contextmanager
def deploy(num_nodes: int, variant: str) -> Iterator[RayNodes]:
    ray.init(
        num_cpus=num_nodes,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=STORE_BYTES,
    )
    try:
        yield (ReferencedNodes if variant == "ref" else RayNodes)(num_nodes)
    finally:
        ray.shutdown()
