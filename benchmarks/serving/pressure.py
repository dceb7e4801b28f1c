"""The scenario of an overload: twice as many requests as can be answered, for a while."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

from ..proc import rss_bytes
from .faults import SHARE, until
from .figures import quantile
from .load import REFUSED, RIGHT, Load
from .system import Deployer, Shape, System
from .traffic import capacity_of

__all__ = ["overload"]

FACTOR = 2.0
BEFORE_S = 2.0
AFTER_S = 10.0
SAMPLE_S = 0.5
SETTLE_S = 2.0
NORMAL_FACTOR = 2.0


async def overload(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Ask at 70 % of capacity, at 200 % for ``seconds``, and at 70 % again.

    ``goodput``: right answers under overload over capacity. ``normal_s``: how long after the overload requests begin
    that take more than twice the p99 of before.
    """
    shape = Shape(graph="rhombus", replicas=2, service_s=options["service_s"])
    async with deploy(shape) as system:
        per_s = await capacity_of(system, clients=64)
        before, _, _ = await _phase(system, SHARE * per_s, BEFORE_S)
        usual_s = quantile((each.took_s for each in before.answers), 0.99)
        during, memory, began = await _phase(system, FACTOR * per_s, options["seconds"], finish=False)
        ended = time.perf_counter()
        after, _, _ = await _phase(system, SHARE * per_s, AFTER_S)
        await until(lambda: not during.num_open)
    slow = [a.began_at - ended for a in after.answers if a.outcome != RIGHT or a.took_s > NORMAL_FACTOR * usual_s]
    settled = memory[int(SETTLE_S / SAMPLE_S) :] or memory
    outcomes = during.outcomes()
    return {
        "capacity": per_s,
        "goodput": during.throughput(began + SETTLE_S, ended) / per_s,
        "refused": sum(each.outcome == REFUSED for each in during.answers) / len(during.answers),
        "p99_s": quantile((each.took_s for each in during.answers if each.outcome == RIGHT), 0.99),
        "memory_bytes": max(memory) - memory[0],
        "growth_bytes": settled[-1] - settled[0],
        "normal_s": max(slow, default=0.0),
        "lost": outcomes["lost"] + after.outcomes()["lost"],
        "duplicated": outcomes["duplicated"],
        "wrong": outcomes["wrong"],
    }


async def _phase(system: System, rate: float, seconds: float, *, finish: bool = True) -> tuple[Load, list[int], float]:
    """Return the load, the memory of all processes now and then, and when it began."""
    load, stop = Load(system), asyncio.Event()
    began = time.perf_counter()
    asking = asyncio.ensure_future(load.open(rate, stop))
    memory = []
    while time.perf_counter() < began + seconds:
        memory.append(rss_bytes([os.getpid(), *system.processes()]))
        await asyncio.sleep(SAMPLE_S)
    stop.set()
    if finish:
        await asking
    return load, memory, began
