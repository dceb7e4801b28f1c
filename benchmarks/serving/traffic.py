"""Scenarios without faults: latency and throughput, what stages add, a burst, and a replica that is slow."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

from .figures import oracle_latencies, quantile
from .load import Load
from .system import Deployer, Shape, System
from .waking import waking

__all__ = ["added", "burst", "capacity_of", "closed", "slow_replica"]

WARM_S = 0.5
CAPACITY_S = 2.0
CLIENTS = 16
NUM_BURST = 200
SLOW_FACTOR = 4.0
SLOW_LOAD = 0.7


async def capacity_of(system: System, *, seconds: float = CAPACITY_S, clients: int = CLIENTS) -> float:
    """Return how many requests it answers per second at most."""
    await Load(system).closed(clients, seconds=WARM_S)
    return await Load(system).closed(clients, seconds=seconds)


async def closed(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Requests of one size, by one client and by 16: ``p50_s_1``, ``rate_1``, ``p50_s_16``, ``rate_16``."""
    found: dict[str, float] = {}
    async with deploy(Shape(graph="trivial", size_bytes=options["size_bytes"])) as system:
        for clients in (1, CLIENTS):
            await Load(system).closed(clients, seconds=WARM_S)
            load = Load(system)
            found[f"rate_{clients}"] = await load.closed(clients, seconds=options["seconds"], at_least=10)
            found[f"p50_s_{clients}"] = statistics.median(each.took_s for each in load.answers)
            found[f"lost_{clients}"] = load.outcomes()["lost"] + load.outcomes()["wrong"]
    return found


async def added(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Three stages, and the same modules in this process, in turn: ``pipeline_s`` and ``direct_s``, medians.

    ``woken_s`` and ``awake_s`` tell what waking up costs on this machine.
    """
    async with deploy(Shape(graph="chain")) as system:
        x, expected = system.sample(0)
        ours: list[float] = []
        direct: list[float] = []
        wrong = 0
        for _ in range(options["times"]):
            began = time.perf_counter()
            answer = await system.infer(x, request_id=None, timeout_s=10)
            between = time.perf_counter()
            system.direct(x)
            ours.append(between - began)
            direct.append(time.perf_counter() - between)
            wrong += not system.is_equal(answer, expected)
    medians = {"pipeline_s": statistics.median(ours), "direct_s": statistics.median(direct)}
    return {**medians, "wrong": wrong, **waking()}


async def burst(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """200 requests at once: ``drained_s``, and ``ideal_s``, which is what they take at full throughput."""
    shape = Shape(graph="rhombus", replicas=2, service_s=options["service_s"])
    async with deploy(shape) as system:
        per_s = await capacity_of(system)
        load = Load(system)
        began = time.perf_counter()
        for _ in range(NUM_BURST):
            load.issue(began)
        await load.finish()
        ideal_s = NUM_BURST * shape.service_s / shape.replicas
        drained_s = time.perf_counter() - began
        return {"drained_s": drained_s, "ideal_s": ideal_s, "capacity": per_s, **load.outcomes()}


async def slow_replica(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """One of three replicas is 4 times slower: ``p99_s``, and ``oracle_p99_s`` of a router that knows all."""
    shape = Shape(graph="slow", replicas=3, service_s=options["service_s"])
    service_s = [shape.service_s, shape.service_s, SLOW_FACTOR * shape.service_s]
    rate = SLOW_LOAD * sum(1 / each for each in service_s)
    async with deploy(shape) as system:
        await Load(system).closed(6, seconds=1.0)  # it learns who is slow
        stop = asyncio.Event()
        load = Load(system)
        asking = asyncio.ensure_future(load.open(rate, stop, seed=options["seed"]))
        await asyncio.sleep(options["seconds"])
        stop.set()
        await asking
    oracle = oracle_latencies(_arrivals(rate, load.num_issued, options["seed"]), service_s)
    took = [each.took_s for each in load.answers]
    return {"p99_s": quantile(took, 0.99), "oracle_p99_s": quantile(oracle, 0.99), "rate": rate, **load.outcomes()}


def _arrivals(rate: float, number: int, seed: int) -> list[float]:
    """Return the moments at which ``Load.open`` asks with that seed."""
    chance, at, found = random.Random(seed), 0.0, []
    for _ in range(number):
        at += chance.expovariate(rate)
        found.append(at)
    return found
