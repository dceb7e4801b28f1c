"""Our side of the scenarios: ``python -m benchmarks.serving.ours SCENARIO OPTIONS``, with options as JSON."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from multiworld.serving import Cluster, Deployment, OverloadedError, Pipeline, Stage
from multiworld.serving.gateway import Gateway, GatewayOptions, Metric

from ..proc import descendants
from .scenarios import run_side
from .system import Shape
from .works import (
    CHAIN_LENGTH,
    CHAIN_MODULE_S,
    CHAIN_SHAPE,
    WIDTH,
    Dense,
    Heavy,
    Late,
    Matmuls,
    OneSlow,
    add_one,
    moody,
    rhombus_tail,
    times_for,
    times_two,
)

__all__ = ["OurSystem", "deploy"]

NUM_SAMPLES = 32
ROWS = 4
SLOW_FACTOR = 4.0
LEASE_S = 2.0
TOKEN = "MULTIWORLD_TOKEN"


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is served: its stages, and how one process calls them."""

    stages: list[Stage]
    whole: Callable[[Tensor], Any]
    inputs: list[Tensor]
    modules: dict[str, nn.Module] = field(default_factory=dict)


class OurSystem:
    """A deployment, with payloads and the answers that one process gives to them."""

    refusals: tuple[type[Exception], ...] = (OverloadedError,)

    def __init__(self, served: Deployment, model: Model) -> None:
        self.served, self.model = served, model
        self.address = ("", 0)
        with torch.inference_mode():
            self._samples = [(x, model.whole(x)) for x in model.inputs]

    async def infer(self, payload: Any, *, request_id: str | None, timeout_s: float) -> Any:
        return await self.served.infer(payload, request_id=request_id, timeout_s=timeout_s)

    def sample(self, number: int) -> tuple[Any, Any]:
        return self._samples[number % len(self._samples)]

    def direct(self, payload: Any) -> Any:
        with torch.inference_mode():
            return self.model.whole(payload)

    def is_equal(self, answer: Any, expected: Any) -> bool:
        return torch.equal(answer, expected)

    def pids(self, stage: str) -> list[int]:
        return [each["pid"] for each in self._of(stage) if each["pid"]]

    def pids_at(self, stage: str, address: str) -> list[int]:
        """Return those of its replicas that are on one host."""
        return [each["pid"] for each in self._of(stage) if each["address"] == address]

    def is_whole(self, stage: str, replicas: int, without: Collection[int] = ()) -> bool:
        of_stage = self._of(stage)
        is_open = [each for each in of_stage if each["open"]]
        return len(is_open) == replicas == len(of_stage) and not any(each["pid"] in without for each in of_stage)

    async def scale(self, stage: str, replicas: int) -> None:
        await self.served.scale(stage, replicas)

    async def update(self, stage: str) -> None:
        await self.served.update(stage, self.model.modules[stage].state_dict())

    async def drain(self, stage: str) -> None:
        await self.served.drain(next(each["id"] for each in self._of(stage) if each["open"]))

    def is_ready(self) -> bool:
        return self.served.readiness()[0]

    def num_answered(self) -> int:
        return int(self.served.status()["requests"]["answered"])

    def processes(self) -> list[int]:
        return descendants(os.getpid())

    def url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}/infer"

    def _of(self, stage: str) -> list[dict[str, Any]]:
        return [each for each in self.served.replicas if each["stage"] == stage]


class Asked:
    """What a gateway asks."""

    def __init__(self, served: Deployment) -> None:
        self.name, self.infer = served.name, served.infer
        self.readiness, self.status = served.readiness, served.status

    def metrics(self) -> dict[str, Metric | float]:
        return {}


@asynccontextmanager
async def deploy(shape: Shape) -> AsyncIterator[OurSystem]:
    """Serve it on this host."""
    folder = tempfile.mkdtemp(prefix="multiworld-bench-")
    try:
        model = MODELS[shape.graph](shape, folder)
        pipeline = Pipeline(model.stages, name=shape.graph, lease_s=LEASE_S)
        async with pipeline.deploy(_cluster(shape)) as served:
            system = OurSystem(served, model)
            if not shape.has_http:
                yield system
                return
            async with Gateway(Asked(served), _gateway_options(shape)) as gateway:
                assert gateway.address is not None
                system.address = gateway.address
                yield system
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _gateway_options(shape: Shape) -> GatewayOptions:
    if not shape.patience_s:
        return GatewayOptions(port=shape.port)
    return GatewayOptions(
        port=shape.port, nan_policy="refuse", head_timeout_s=shape.patience_s, body_timeout_s=shape.patience_s
    )


def _cluster(shape: Shape) -> Cluster:
    if not shape.far:
        return Cluster()
    return Cluster(address=(shape.address, shape.port), token=os.environ[TOKEN], num_hosts=2)


def _trivial(shape: Shape, _: str) -> Model:
    def whole(x: Tensor) -> Tensor:
        return times_two(add_one(x))

    num = NUM_SAMPLES if shape.size_bytes < 1 << 20 else 2
    inputs = [torch.randn(shape.size_bytes // 4) for _ in range(num)]
    return Model(stages=[Stage("add", add_one), Stage("mul", times_two)], whole=whole, inputs=inputs)


def _moody(shape: Shape, _: str) -> Model:
    return Model(stages=[Stage("moody", moody)], whole=moody, inputs=[torch.zeros(shape.size_bytes // 4)])


def _rhombus(shape: Shape, folder: str) -> Model:
    head, right = Dense(1), Dense(3, shape.service_s / 2)
    left = (
        Late(2, shape.service_s, folder, shape.replicas, shape.setup_s) if shape.setup_s else Dense(2, shape.service_s)
    )

    def whole(x: Tensor) -> Tensor:
        y = head(x)
        return rhombus_tail(_without_service(left)(y), _without_service(right)(y))

    here = (socket.gethostname(),) if shape.far else ()
    stages = [
        Stage("head", head, hosts=here),
        Stage("left", left, inputs=("head",), replicas=shape.replicas, max_replicas=shape.max_replicas),
        Stage("right", right, inputs=("head",), hosts=here),
        Stage("tail", rhombus_tail, inputs=("left", "right"), hosts=here),
    ]
    return Model(stages=stages, whole=whole, inputs=_rows(), modules={"head": head, "left": left, "right": right})


def _chain(shape: Shape, _: str) -> Model:
    times = times_for(CHAIN_MODULE_S)
    modules = [Matmuls(seed, times) for seed in range(CHAIN_LENGTH)]
    x = torch.randn(CHAIN_SHAPE)

    def whole(x: Tensor) -> Tensor:
        for module in modules:
            x = module(x)
        return x

    return Model(stages=[Stage(f"part{i}", module) for i, module in enumerate(modules)], whole=whole, inputs=[x])


def _slow(shape: Shape, folder: str) -> Model:
    one = OneSlow(2, shape.service_s, folder, SLOW_FACTOR)
    return Model(stages=[Stage("left", one, replicas=shape.replicas)], whole=_without_service(one), inputs=_rows())


def _heavy(shape: Shape, _: str) -> Model:
    heavy = Heavy(shape.weights_bytes)
    stage = Stage("left", heavy, replicas=shape.replicas, max_replicas=shape.max_replicas)
    return Model(stages=[stage], whole=heavy, inputs=_rows(), modules={"left": heavy})


MODELS = {"trivial": _trivial, "moody": _moody, "rhombus": _rhombus, "chain": _chain, "slow": _slow, "heavy": _heavy}


def _rows() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH) for _ in range(NUM_SAMPLES)]


def _without_service(module: Dense) -> Dense:
    bare = copy.copy(module)
    bare.service_s = 0.0
    return bare


def main() -> int:
    torch.set_num_threads(1)
    logging.getLogger("multiworld").setLevel(logging.ERROR)
    return asyncio.run(run_side(deploy, sys.argv[1], sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
