"""The peer's side of the scenarios: ``python -m benchmarks.serving.ray_serve SCENARIO OPTIONS`` in Ray's interpreter.

Ray Serve as its documentation has it, or tuned (``RAY_SERVE_TUNED=1``, told by whoever starts this): replicas take a
hundred requests at once, and the router that found all of them busy looks again after 20 ms at most. Handles call
handles; payloads are NumPy arrays.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np

from ..proc import command_of, descendants
from .faults import until
from .scenarios import run_side
from .system import Shape

__all__ = ["RaySystem", "deploy"]

# Only the peer's interpreter has these.
ray, serve, exceptions, responses = (
    cast("Any", importlib.import_module(name))
    for name in ("ray", "ray.serve", "ray.serve.exceptions", "starlette.responses")
)
NUM_SAMPLES = 32
ROWS, WIDTH = 4, 64
NUM_CPUS = 8  # of which Ray believes that it has them: as many replicas as a scenario needs
IS_TUNED = os.environ.get("RAY_SERVE_TUNED") == "1"
BUSY = {"max_ongoing_requests": 100} if IS_TUNED else {}
APPLICATION = "default"
START_S = 120.0
LOCAL = "127.0.0.1"


def _weight(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((WIDTH, WIDTH), dtype=np.float32) / 8


class Add:
    async def __call__(self, x: Any) -> Any:
        return x + 1


class Mul:
    """Also the ingress: over HTTP it is asked with raw float32."""

    def __init__(self, add: Any) -> None:
        self.add = add

    async def infer(self, x: Any) -> Any:
        return (await self.add.remote(x)) * 2

    async def __call__(self, request: Any) -> Any:
        x = np.frombuffer(await request.body(), np.float32)
        return responses.Response((await self.infer(x)).tobytes(), media_type="application/octet-stream")


class Dense:
    """Takes one request after the other, ``service_s`` each."""

    def __init__(self, seed: int, service_s: float) -> None:
        self.weight, self.service_s = _weight(seed), service_s

    def __call__(self, x: Any) -> Any:
        time.sleep(self.service_s)
        return np.tanh(x @ self.weight)


class Rhombus:
    """Head, tail and ingress."""

    def __init__(self, left: Any, right: Any) -> None:
        self.weight, self.left, self.right = _weight(1), left, right

    async def infer(self, x: Any) -> Any:
        y = np.tanh(x @ self.weight)
        left, right = self.left.remote(y), self.right.remote(y)
        return (await left) + (await right)


class RaySystem:
    """An application, with payloads and the answers that one process gives to them."""

    def __init__(self, handle: Any, shape: Shape, bind: Callable[[int], Any]) -> None:
        self._handle, self._bind, self._shape = handle, bind, shape
        self._samples = [(x, self.direct(x)) for x in _inputs(shape)]
        self._num_answered = 0

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        return (exceptions.BackPressureError,)

    async def infer(self, payload: Any, *, request_id: str | None, timeout_s: float) -> Any:
        answer = await asyncio.wait_for(_asked(self._handle, payload), timeout_s)
        self._num_answered += 1
        return answer

    def sample(self, number: int) -> tuple[Any, Any]:
        return self._samples[number % len(self._samples)]

    def direct(self, payload: Any) -> Any:
        if self._shape.graph == "trivial":
            return (payload + 1) * 2
        y = np.tanh(payload @ _weight(1))
        return np.tanh(y @ _weight(2)) + np.tanh(y @ _weight(3))

    def is_equal(self, answer: Any, expected: Any) -> bool:
        return bool(np.array_equal(answer, expected))

    def pids(self, stage: str) -> list[int]:
        name = f"ray::ServeReplica:{APPLICATION}:{stage}"
        return [pid for pid in self.processes() if command_of(pid).split(".")[0].strip() == name]

    def pids_at(self, stage: str, address: str) -> list[int]:
        raise NotImplementedError("it is compared on one host only")

    def url(self) -> str:
        return f"http://{LOCAL}:{self._shape.port}/"

    def is_whole(self, stage: str, replicas: int, without: Collection[int] = ()) -> bool:
        states = serve.status().applications[APPLICATION].deployments[stage].replica_states
        counts = {str(getattr(state, "value", state)): number for state, number in states.items()}
        pids = self.pids(stage)
        return counts == {"RUNNING": replicas} and len(pids) == replicas and not set(pids) & set(without)

    async def scale(self, stage: str, replicas: int) -> None:
        await asyncio.to_thread(serve.run, self._bind(replicas), route_prefix=None)
        await until(lambda: self.is_whole(stage, replicas))

    async def update(self, stage: str) -> None:
        raise NotImplementedError("Ray Serve has no weights of its own to update")

    async def drain(self, stage: str) -> None:
        raise NotImplementedError("Ray Serve does not drain a replica on request")

    def is_ready(self) -> bool:
        deployments = serve.status().applications[APPLICATION].deployments.values()
        return all("RUNNING" in {str(getattr(s, "value", s)) for s in each.replica_states} for each in deployments)

    def num_answered(self) -> int:
        return self._num_answered

    def processes(self) -> list[int]:
        return descendants(os.getpid())


async def _asked(handle: Any, payload: Any) -> Any:
    return await handle.remote(payload)


@asynccontextmanager
async def deploy(shape: Shape) -> AsyncIterator[RaySystem]:
    """Start Ray and serve it."""
    await asyncio.to_thread(
        ray.init, num_cpus=NUM_CPUS, include_dashboard=False, logging_level="ERROR", log_to_driver=False
    )
    try:
        bind = {"trivial": _trivial, "rhombus": _rhombus}[shape.graph]
        await asyncio.to_thread(serve.start, http_options=_http(shape))
        prefix = "/" if shape.has_http else None
        handle = await asyncio.to_thread(serve.run, bind(shape, shape.replicas), route_prefix=prefix)
        system = RaySystem(handle.infer, shape, lambda replicas: bind(shape, replicas))
        for number in range(20):
            await system.infer(system.sample(number)[0], request_id=None, timeout_s=START_S)
        yield system
    finally:
        await asyncio.to_thread(serve.shutdown)
        await asyncio.to_thread(ray.shutdown)


def _http(shape: Shape) -> dict[str, Any]:
    return {"host": LOCAL, "port": shape.port} if shape.has_http else {"location": "NoServer"}


def _deployment(work: Any, name: str, replicas: int = 1) -> Any:
    return serve.deployment(name=name, num_replicas=replicas, ray_actor_options={"num_cpus": 0.1}, **BUSY)(work)


def _trivial(_: Shape, replicas: int) -> Any:
    return _deployment(Mul, "mul").bind(_deployment(Add, "add").bind())


def _rhombus(shape: Shape, replicas: int) -> Any:
    left = _deployment(Dense, "left", replicas).bind(2, shape.service_s)
    right = _deployment(Dense, "right").bind(3, shape.service_s / 2)
    return _deployment(Rhombus, "rhombus").bind(left, right)


def _inputs(shape: Shape) -> list[Any]:
    chance = np.random.default_rng(0)
    if shape.graph == "trivial":
        num = NUM_SAMPLES if shape.size_bytes < 1 << 20 else 2
        return [chance.standard_normal(shape.size_bytes // 4, dtype=np.float32) for _ in range(num)]
    return [chance.standard_normal((ROWS, WIDTH), dtype=np.float32) for _ in range(NUM_SAMPLES)]


if __name__ == "__main__":
    sys.exit(asyncio.run(run_side(deploy, sys.argv[1], sys.argv[2])))
