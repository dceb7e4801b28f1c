"""Scenarios in which processes of a stage are killed or stopped while requests flow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

from .figures import longest_gap_s, quantile
from .load import RIGHT, Load
from .system import Deployer, Shape, System
from .traffic import capacity_of

__all__ = ["all_at_once", "donor", "loaded", "newcomer", "one_of_several", "only_one", "readiness", "until"]

BEFORE_S = 2.0
AFTER_S = 1.0
LOOK_S = 0.005
HANG_S = 60.0
FULL_S = 20.0
SHARE = 0.7


async def until(condition: Callable[[], object], timeout_s: float = HANG_S) -> float:
    """Wait for a condition and return how long that took; infinite if it does not come."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > timeout_s:
            return float("inf")
        await asyncio.sleep(LOOK_S)
    return time.perf_counter() - began


@asynccontextmanager
async def loaded(system: System, rate: float, outcomes: dict[str, float]) -> AsyncIterator[Load]:
    """Ask at that rate during the block. What became of all requests is put into ``outcomes`` at its end."""
    load, stop = Load(system, has_ids=True), asyncio.Event()
    answered_before = system.num_answered()
    asking = asyncio.ensure_future(load.open(rate, stop))
    try:
        await asyncio.sleep(BEFORE_S)
        yield load
    finally:
        stop.set()
        await asking
        outcomes.update(load.outcomes())
        counted = sum(load.times_answered.values())
        outcomes["duplicated"] += max(0, system.num_answered() - answered_before - counted)
        for error, times in load.errors.most_common(5):
            print(f"  lost: {times} x {error}", flush=True)


async def one_of_several(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Send a signal to one of two replicas of ``left``, again and again, at 70 % of capacity.

    ``p99_after_s`` is of all requests that were due in the second after a fault; ``replaced_s`` until there are two
    again, ``full_s`` until there are, and no more requests are open than there were before, both medians.
    """
    shape = Shape(graph="rhombus", replicas=2, service_s=options["service_s"])
    chance = random.Random(options["seed"])
    outcomes: dict[str, float] = {}
    after: list[float] = []
    replaced: list[float] = []
    full: list[float] = []
    async with deploy(shape) as system:
        per_s = await capacity_of(system)
        async with loaded(system, SHARE * per_s, outcomes) as load:
            now = time.perf_counter()
            before = load.between(now - BEFORE_S / 2, now)
            usual_open = 2 + 2 * int(SHARE * per_s * quantile(before, 0.5))
            for number in range(options["times"]):
                pid = chance.choice(system.pids("left"))
                at = _signal(pid, options["signal"])
                replaced.append(await until(partial(system.is_whole, "left", 2, {pid})))
                await until(lambda: load.num_open <= usual_open, FULL_S)
                full.append(time.perf_counter() - at)
                await asyncio.sleep(max(0.0, at + options["window_s"] - time.perf_counter()) + chance.uniform(0, 0.2))
                after += load.between(at, at + options["window_s"])
                _say(f"{number + 1}/{options['times']}: replaced after {replaced[-1]:.2f} s, full {full[-1]:.2f} s")
    return {
        "capacity": per_s,
        "p99_before_s": quantile(before, 0.99),
        "p99_after_s": quantile(after, 0.99),
        "worst_after_s": max(after, default=float("inf")),
        "replaced_s": median(replaced),
        "replaced_worst_s": max(replaced),
        "full_s": median(full),
        "full_worst_s": max(full),
        **outcomes,
    }


async def only_one(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Kill the only replica of ``left``: ``silent_s`` is the longest time without an answer."""
    return await _blip(deploy, options, replicas=1, victims=1)


async def all_at_once(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Kill both replicas of ``left`` at the same moment."""
    return await _blip(deploy, options, replicas=2, victims=2)


async def _blip(deploy: Deployer, options: Mapping[str, Any], *, replicas: int, victims: int) -> dict[str, float]:
    outcomes: dict[str, float] = {}
    silent: list[float] = []
    whole: list[float] = []
    shape = Shape(graph="rhombus", replicas=replicas, service_s=options["service_s"])
    async with deploy(shape) as system:
        per_s = await capacity_of(system)
        async with loaded(system, SHARE * per_s, outcomes) as load:
            for number in range(options["times"]):
                pids = system.pids("left")[:victims]
                at = min([_signal(pid, signal.SIGKILL) for pid in pids])
                whole.append(await until(partial(system.is_whole, "left", replicas, pids)))
                await until(lambda: load.num_open <= 2 * SHARE * per_s * shape.service_s + 8, FULL_S)
                await asyncio.sleep(AFTER_S)
                moments = [each.ended_at for each in load.answers if each.outcome == RIGHT]
                silent.append(longest_gap_s(moments, at, time.perf_counter()))
                _say(f"{number + 1}/{options['times']}: silent for {silent[-1]:.2f} s, whole after {whole[-1]:.2f} s")
    return {"silent_s": median(silent), "silent_worst_s": max(silent), "whole_s": median(whole), **outcomes}


async def newcomer(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Scale ``left`` from one to two, and kill the new replica as soon as it has a process."""
    outcomes: dict[str, float] = {}
    scaled: list[float] = []
    async with deploy(Shape(graph="rhombus", service_s=options["service_s"])) as system:
        per_s = await capacity_of(system)
        async with loaded(system, SHARE * per_s, outcomes):
            for number in range(options["times"]):
                known = system.pids("left")
                began = time.perf_counter()
                scaling = asyncio.ensure_future(system.scale("left", 2))
                await until(partial(_newcomers, system, known))
                await asyncio.sleep(number * 0.01)
                for pid in _newcomers(system, known):
                    _signal(pid, signal.SIGKILL)
                await scaling
                scaled.append(time.perf_counter() - began)
                await system.scale("left", 1)
    return {"scaled_s": median(scaled), "scaled_worst_s": max(scaled), **outcomes}


async def donor(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Scale from one to two a stage with heavy weights, and kill the replica that hands them over meanwhile."""
    outcomes: dict[str, float] = {}
    scaled: list[float] = []
    chance = random.Random(options["seed"])
    async with deploy(Shape(graph="heavy", weights_bytes=options["weights_bytes"])) as system:
        per_s = await capacity_of(system, seconds=1.0)
        async with loaded(system, 0.2 * per_s, outcomes):
            for number in range(options["times"]):
                known = system.pids("left")
                began = time.perf_counter()
                scaling = asyncio.ensure_future(system.scale("left", 2))
                await until(partial(_newcomers, system, known))
                await asyncio.sleep(chance.uniform(0, options["within_s"]))
                _signal(known[0], signal.SIGKILL)
                await scaling
                await until(partial(system.is_whole, "left", 2, known))
                scaled.append(time.perf_counter() - began)
                _say(f"{number + 1}/{options['times']}: scaled after {scaled[-1]:.2f} s")
                await system.scale("left", 1)
    return {"scaled_s": median(scaled), "scaled_worst_s": max(scaled), **outcomes}


async def readiness(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Kill the last replica of a stage that takes seconds to come up again: ``known_s`` until it says so."""
    known: list[float] = []
    async with deploy(Shape(graph="rhombus", service_s=options["service_s"], setup_s=options["setup_s"])) as system:
        for _ in range(options["times"]):
            assert await until(system.is_ready) < HANG_S
            for pid in system.pids("left"):
                _signal(pid, signal.SIGKILL)
            known.append(await until(lambda: not system.is_ready(), options["setup_s"]))
    return {"known_s": median(known), "known_worst_s": max(known)}


def _newcomers(system: System, known: Collection[int]) -> set[int]:
    return set(system.pids("left")) - set(known)


def _signal(pid: int, signum: int) -> float:
    at = time.perf_counter()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
    return at


def _say(text: str) -> None:
    print(f"  {text}", flush=True)
