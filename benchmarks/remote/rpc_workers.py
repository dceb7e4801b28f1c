"""torch.distributed.rpc: a worker for each node, and one remote function for each thing that it does.

Variants: ``shm`` is TensorPipe as it comes, which takes shared memory on one host; ``tcp`` has its sockets only. Both
call functions that keep tensors on the worker. ``rref`` makes each sum a remote reference, over shared memory.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
from torch.distributed import rpc
from torch.futures import Future, wait_all

from .system import SHAPE, START_S

__all__ = ["deploy"]

MASTER = "master"
KEPT: dict[str, torch.Tensor] = {}
LOCK = threading.Lock()  # calls run in several threads, in no order: a sum needs none
OPTIONS: dict[str, dict[str, Any]] = {"tcp": {"_transports": ["uv"], "_channels": ["basic"]}}


def _add() -> None:
    with LOCK:
        KEPT["sum"] = KEPT["sum"] + KEPT["one"]


def _get() -> torch.Tensor:
    with LOCK:
        return KEPT["sum"]


def _add_and_get() -> torch.Tensor:
    with LOCK:
        KEPT["sum"] = KEPT["sum"] + KEPT["one"]
        return KEPT["sum"]


def _put(tensor: torch.Tensor) -> None:
    KEPT["big"] = tensor


def _big() -> torch.Tensor:
    return KEPT["big"]


def _filled(value: float) -> torch.Tensor:
    return torch.full(SHAPE, value)


def _add_references(x: Any, one: Any) -> torch.Tensor:
    return x.local_value() + one.local_value()  # type: ignore[no-any-return]


class RpcNodes:
    """Sums under a name on the worker: a call returns nothing, and the sum is fetched by another call."""

    burst = 1000
    deaths: tuple[type[Exception], ...] = (RuntimeError,)

    def __init__(self, num_nodes: int) -> None:
        self._names = [_name(node) for node in range(num_nodes)]
        self._calls: list[list[Future[None]]] = [[] for _ in self._names]

    def add(self, node: int, times: int) -> None:
        name = self._names[node]
        self._calls[node] += [rpc.rpc_async(name, _add) for _ in range(times)]

    def value(self, node: int, timeout_s: float) -> float:
        calls, self._calls[node] = self._calls[node], []
        wait_all(calls)
        return float(rpc.rpc_sync(self._names[node], _get, timeout=timeout_s)[0, 0])

    def add_and_fetch(self, node: int) -> torch.Tensor:
        return rpc.rpc_sync(self._names[node], _add_and_get)  # type: ignore[no-any-return]

    def send(self, node: int, tensor: torch.Tensor) -> None:
        rpc.rpc_sync(self._names[node], _put, args=(tensor,))

    def fetch(self, node: int) -> torch.Tensor:
        return rpc.rpc_sync(self._names[node], _big)  # type: ignore[no-any-return]

    def pid(self, node: int) -> int:
        return int(rpc.rpc_sync(self._names[node], os.getpid))

    def noticed_s(self) -> float:
        return math.nan


class ReferencedNodes(RpcNodes):
    """Each sum is an RRef, made of two others: what resembles remote tensors most."""

    burst = 500

    def __init__(self, num_nodes: int) -> None:
        super().__init__(num_nodes)
        self._sums: list[list[Any]] = [[rpc.remote(name, _filled, args=(0.0,))] for name in self._names]
        self._ones = [rpc.remote(name, _filled, args=(1.0,)) for name in self._names]

    def add(self, node: int, times: int) -> None:
        name, sums, one = self._names[node], self._sums[node], self._ones[node]
        for _ in range(times):
            sums.append(rpc.remote(name, _add_references, args=(sums[-1], one)))

    def value(self, node: int, timeout_s: float) -> float:
        value = float(self._sums[node][-1].to_here(timeout_s)[0, 0])
        del self._sums[node][:-1]
        return value

    def add_and_fetch(self, node: int) -> torch.Tensor:
        self.add(node, 1)
        del self._sums[node][:-1]
        return self._sums[node][-1].to_here()  # type: ignore[no-any-return]


@contextmanager
def deploy(num_nodes: int, variant: str) -> Iterator[RpcNodes]:
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{folder}/rendezvous"
        spawn = multiprocessing.get_context("spawn")
        workers: list[SpawnProcess] = [
            spawn.Process(target=_work, args=(node, num_nodes, variant, where), daemon=True)
            for node in range(num_nodes)
        ]
        for worker in workers:
            worker.start()
        try:
            _join(MASTER, num_nodes, num_nodes, variant, where)
            yield (ReferencedNodes if variant == "rref" else RpcNodes)(num_nodes)
        finally:  # it waits for all of them to agree, which one that was killed does not
            for worker in workers:
                worker.kill()


def _work(node: int, num_nodes: int, variant: str, where: str) -> None:
    torch.set_num_threads(1)
    KEPT.update(sum=torch.zeros(SHAPE), one=torch.ones(SHAPE))
    _join(_name(node), node, num_nodes, variant, where)
    rpc.shutdown()


def _join(name: str, rank: int, num_nodes: int, variant: str, where: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4, rpc_timeout=START_S, init_method=where, **OPTIONS.get(variant, {})
    )
    init_rpc: Any = rpc.init_rpc  # untyped
    init_rpc(name, rank=rank, world_size=num_nodes + 1, rpc_backend_options=options)


def _name(node: int) -> str:
    return f"node{node}"
