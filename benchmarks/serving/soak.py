"""The scenario of many faults and changes, one after the other for minutes, from a plan that a seed decides."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..proc import num_descriptors, num_threads, rss_bytes
from .faults import SHARE, loaded, until
from .figures import quantile
from .load import RIGHT, Load
from .system import Deployer, Shape, System
from .traffic import capacity_of

__all__ = ["plan", "soak"]

EVENTS = ("kill", "stop", "two", "scale", "update", "drain")
REPLICAS = 2
BEFORE_S = 10.0
SETTLE_S = 3.0
HELD = {"rss_bytes": rss_bytes, "descriptors": num_descriptors, "threads": num_threads}


def plan(seed: int, number: int) -> list[str]:
    """Return which event comes when: as random as the seed, each kind as often as the others."""
    chance = random.Random(seed)
    events: list[str] = []
    while len(events) < number:
        events += chance.sample(EVENTS, len(EVENTS))
    return events[:number]


async def soak(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """``throughput``: right answers per second over those asked for, with everything that happened.

    ``grown_…``: how much all its processes together hold at the end beyond what they held after the first events.
    """
    outcomes: dict[str, float] = {}
    hangs = 0
    events = plan(options["seed"], max(2, round(options["minutes"] * 60 / options["every_s"])))
    async with deploy(Shape(graph="rhombus", replicas=REPLICAS, service_s=options["service_s"])) as system:
        rate = SHARE * await capacity_of(system)
        async with loaded(system, rate, outcomes) as load:
            began = time.perf_counter()
            await asyncio.sleep(BEFORE_S)
            fault_free = load.throughput(began, began + BEFORE_S)
            faulty_from = time.perf_counter()
            held: list[dict[str, float]] = []
            for number, event in enumerate(events):
                due = faulty_from + (number + 1) * options["every_s"]
                try:
                    await asyncio.wait_for(_happens(system, event), options["every_s"])
                except asyncio.TimeoutError:
                    hangs += 1
                    print(f"  {event} did not end within {options['every_s']:g} s", flush=True)
                if await until(lambda: system.is_whole("left", REPLICAS), options["every_s"]) == float("inf"):
                    hangs += 1
                    print(f"  not whole again after {event}", flush=True)
                await asyncio.sleep(max(SETTLE_S, due - time.perf_counter()))
                pids = system.processes()  # without this one, which keeps what became of each request
                held.append({name: float(read(pids)) for name, read in HELD.items()})
                print(f"  {number + 1}/{len(events)} {event}: {_shown(load, held[-1])}", flush=True)
            ended = time.perf_counter()
        throughput = load.throughput(faulty_from, ended)
        took = load.between(faulty_from, ended)
    early = held[min(len(EVENTS), len(held) - 1)]
    return {
        "events": len(events),
        "hangs": hangs,
        "throughput": throughput / fault_free,
        "p99_s": quantile(took, 0.99),
        "worst_s": max(took),
        **{f"grown_{name}": held[-1][name] - early[name] for name in HELD},
        **outcomes,
    }


async def _happens(system: System, event: str) -> None:
    if event == "scale":
        await system.scale("left", REPLICAS + 1)
        await system.scale("left", REPLICAS)
    elif event == "update":
        await system.update("left")
    elif event == "drain":
        await system.drain("left")
    else:
        signum = signal.SIGSTOP if event == "stop" else signal.SIGKILL
        victims = system.pids("left")[: 2 if event == "two" else 1]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        await until(lambda: not set(victims) & set(system.pids("left")))


def _shown(load: Load, held: Mapping[str, float]) -> str:
    outcomes = Counter(each.outcome for each in load.answers if each.outcome != RIGHT)
    wrong = ", ".join(f"{times} {outcome}" for outcome, times in outcomes.items()) or "all right"
    errors = "".join(f"\n    {times} x {error}" for error, times in load.errors.items())
    return (
        f"{len(load.answers)} answered, {wrong}, {held['rss_bytes'] / 1e6:.0f} MB, "
        f"{held['descriptors']:.0f} descriptors, {held['threads']:.0f} threads{errors}"
    )
