"""Scenarios in which a deployment is changed while requests flow: nobody may notice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .faults import SHARE, loaded
from .figures import least_throughput, quantile
from .load import RIGHT, Load
from .system import Deployer, Shape, System
from .traffic import capacity_of

__all__ = ["scale_out_and_in", "update"]

BEFORE_S = 4.0
WINDOW_S = 0.5
AFTER_S = 0.5
Change = Callable[[System], Awaitable[None]]


async def scale_out_and_in(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """From one replica to three and back, at 70 % of what one can do."""
    changes: dict[str, Change] = {
        "out": lambda system: system.scale("left", 3),
        "in": lambda system: system.scale("left", 1),
    }
    return await _changed(deploy, options, changes, replicas=1)


async def update(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """New weights for both replicas of a stage."""
    return await _changed(deploy, options, {"update": lambda system: system.update("left")}, replicas=2)


async def _changed(
    deploy: Deployer, options: Mapping[str, Any], changes: Mapping[str, Change], *, replicas: int
) -> dict[str, float]:
    """Return for each change ``p99_s_…`` during it, ``least_…`` throughput in half a second over what was asked, and
    ``took_s_…``; ``p99_s_before`` and ``least_before`` are of four seconds without a change.
    """
    found: dict[str, float] = {}
    outcomes: dict[str, float] = {}
    shape = Shape(graph="rhombus", replicas=replicas, service_s=options["service_s"])
    async with deploy(shape) as system:
        rate = SHARE * await capacity_of(system)
        async with loaded(system, rate, outcomes) as load:
            began = time.perf_counter()
            await asyncio.sleep(BEFORE_S)
            found |= _figures(load, "before", began, rate)
            for name, change in changes.items():
                began = time.perf_counter()
                await change(system)
                found[f"took_s_{name}"] = time.perf_counter() - began
                await asyncio.sleep(AFTER_S)
                found |= _figures(load, name, began, rate)
    return {**found, **outcomes}


def _figures(load: Load, name: str, began: float, rate: float) -> dict[str, float]:
    ended = time.perf_counter()
    moments = [each.ended_at for each in load.answers if each.outcome == RIGHT]
    return {
        f"p99_s_{name}": quantile(load.between(began, ended), 0.99),
        f"least_{name}": least_throughput(moments, began, ended, WINDOW_S) / rate,
    }
