"""Monarch, in its own interpreter: a mesh with a process for each node.

Variants: ``engine`` is its tensor engine, where plain ``x + y`` runs on a slice of the mesh; ``actor`` calls endpoints
of actors that keep the tensors, as one does with Ray.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from .system import SHAPE, START_S

__all__ = ["deploy", "from_numpy"]

monarch, actors, hosts, engine, fetching, supervision = (  # only its own interpreter has these
    cast("Any", importlib.import_module(name))
    for name in (
        "monarch",
        "monarch.actor",
        "monarch._src.actor.host_mesh",
        "monarch.mesh_controller",
        "monarch.fetch",
        "monarch._rust_bindings.monarch_hyperactor.supervision",
    )
)


def from_numpy(array: Any) -> torch.Tensor:
    """Run on the node: an array is what travels there, for local tensors do not."""
    return torch.from_numpy(array.copy())


class Node(actors.Actor):  # type: ignore[name-defined,misc]  # known at run time only
    """What runs in a process of the mesh."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.sum, self.one, self.big = torch.zeros(SHAPE), torch.ones(SHAPE), torch.zeros(0)

    @actors.endpoint  # type: ignore[untyped-decorator]
    async def add(self) -> None:
        self.sum = self.sum + self.one

    @actors.endpoint  # type: ignore[untyped-decorator]
    async def get(self) -> torch.Tensor:
        return self.sum

    @actors.endpoint  # type: ignore[untyped-decorator]
    async def add_and_get(self) -> torch.Tensor:
        self.sum = self.sum + self.one
        return self.sum

    @actors.endpoint  # type: ignore[untyped-decorator]
    async def put(self, tensor: torch.Tensor) -> None:
        self.big = tensor

    @actors.endpoint  # type: ignore[untyped-decorator]
    async def get_big(self) -> torch.Tensor:
        return self.big

    @actors.endpoint  # type: ignore[untyped-decorator]
    async def pid(self) -> int:
        return os.getpid()


class ActorNodes:
    """Sums are attributes of the actors."""

    burst = 1000
    deaths: tuple[type[Exception], ...] = (supervision.SupervisionError, TimeoutError)

    def __init__(self, processes: Any, num_nodes: int) -> None:
        spawned = processes.spawn("node", Node)
        self._nodes = [spawned.slice(gpus=node) for node in range(num_nodes)]
        self._pids = [int(node.pid.call_one().get()) for node in self._nodes]
        self._noticed_s = math.nan
        actors.unhandled_fault_hook = self._notice  # the default ends this process

    def _notice(self, _: Any) -> None:
        if math.isnan(self._noticed_s):
            self._noticed_s = time.perf_counter()

    def add(self, node: int, times: int) -> None:
        target = self._nodes[node].add
        for _ in range(times):
            target.broadcast()

    def value(self, node: int, timeout_s: float) -> float:
        return float(self._nodes[node].get.call_one().get(timeout=timeout_s)[0, 0])

    def add_and_fetch(self, node: int) -> torch.Tensor:
        return self._nodes[node].add_and_get.call_one().get()  # type: ignore[no-any-return]

    def send(self, node: int, tensor: torch.Tensor) -> None:
        self._nodes[node].put.call_one(tensor).get()

    def fetch(self, node: int) -> torch.Tensor:
        return self._nodes[node].get_big.call_one().get()  # type: ignore[no-any-return]

    def pid(self, node: int) -> int:
        return self._pids[node]

    def noticed_s(self) -> float:
        return self._noticed_s


class EngineNodes(ActorNodes):
    """Sums are tensors of the tensor engine, each on a slice of one process."""

    burst = 300

    def __init__(self, processes: Any, num_nodes: int) -> None:
        super().__init__(processes, num_nodes)
        mesh = engine.spawn_tensor_engine(processes)
        self._slices = [mesh.slice(gpus=node) for node in range(num_nodes)]
        self._sums: list[torch.Tensor] = []
        self._ones: list[torch.Tensor] = []
        for each in self._slices:
            with each.activate():
                self._sums.append(torch.zeros(SHAPE))
                self._ones.append(torch.ones(SHAPE))
        self._big = self._sums[0]
        name = f"{__name__}.{from_numpy.__name__}"
        self._put = monarch.remote(name, propagate=lambda array: torch.empty(array.shape, dtype=torch.float32))

    def add(self, node: int, times: int) -> None:
        with self._slices[node].activate():
            x, one = self._sums[node], self._ones[node]
            for _ in range(times):
                x = x + one
            self._sums[node] = x

    def value(self, node: int, timeout_s: float) -> float:
        with self._slices[node].activate():
            fetched = fetching.fetch_shard(self._sums[node])
        return float(fetched.get(timeout=timeout_s)[0, 0])

    def add_and_fetch(self, node: int) -> torch.Tensor:
        with self._slices[node].activate():
            self._sums[node] = self._sums[node] + self._ones[node]
            fetched = fetching.fetch_shard(self._sums[node])
        return fetched.get()  # type: ignore[no-any-return]

    def send(self, node: int, tensor: torch.Tensor) -> None:
        array = tensor.numpy()
        with self._slices[node].activate():
            self._big = self._put(array)
            first = fetching.fetch_shard(self._big[:1])
        first.get(timeout=START_S)

    def fetch(self, node: int) -> torch.Tensor:
        with self._slices[node].activate():
            fetched = fetching.fetch_shard(self._big)
        return fetched.get()  # type: ignore[no-any-return]


@contextmanager
def deploy(num_nodes: int, variant: str) -> Iterator[ActorNodes]:
    processes = hosts.this_host().spawn_procs(per_host={"gpus": num_nodes})
    yield (ActorNodes if variant == "actor" else EngineNodes)(processes, num_nodes)
