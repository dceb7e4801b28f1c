"""Schedules of failures in trainings in pipelines by the thousand: the real engine and decisions, and no processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median, percentile

from .simulated.disturbed_pipelines import HANG_S, Disturbed, hit_in_recovery, killed_at_random
from .simulated.growing_pipelines import hit_while_growing

__all__ = ["simulated_growth", "simulated_kills", "simulated_recoveries"]


@dataclass(frozen=True, kw_only=True)
class _Went:
    """How one schedule went. ``problem``: empty if all promises were kept."""

    seed: int
    problem: str
    longest_s: float = 0.0
    steps: int = 0
    hit: Counter[str] = field(default_factory=Counter)


def simulated_kills(num_schedules: int, seed: int) -> list[Line]:
    """Random kills in any phase: each sample once, and the losses and states of an undisturbed training."""
    went = _run(killed_at_random, num_schedules, seed)
    name = f"{num_schedules} simulated kill schedules of pipelines: those with a sample not once, or another state"
    return [_failed(name, went)]


def simulated_recoveries(num_schedules: int, seed: int) -> list[Line]:
    """Failures in a recovery, two at once, the coordinator, partitions."""
    went = _run(hit_in_recovery, num_schedules, seed)
    took = [each.longest_s for each in went]
    return [
        _failed(f"{num_schedules} simulated schedules of pipelines: those that failed", went),
        Line(
            name=f"{num_schedules} simulated schedules of pipelines, without a step though all could go on: worst",
            unit="s",
            value=max(took, default=0.0),
            bound=Bound.at_most(HANG_S),
            details={"p95": percentile(took, 95), "median": median(took)} if took else {},
            note="the simulation's clock",
        ),
    ]


def simulated_growth(num_schedules: int, seed: int) -> list[Line]:
    """A process joins; while it gets layers beside the steps, others are lost, leave and come, or it is lost itself."""
    went = _run(hit_while_growing, num_schedules, seed)
    return [_failed(f"{num_schedules} simulated schedules of pipelines that grow: those that failed", went)]


def _failed(name: str, went: list[_Went]) -> Line:
    hit = sum((each.hit for each in went), Counter[str]())
    details = {"steps": float(sum(each.steps for each in went)), **{key: float(hit[key]) for key in sorted(hit)}}
    failed = [each for each in went if each.problem]
    return Line(name=name, unit="", value=len(failed), bound=Bound.at_most(0), details=details)


def _run(schedule: Callable[[int], Disturbed], num_schedules: int, seed: int) -> list[_Went]:
    """Run so many on all cores. Prints what went wrong."""
    went = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context, initializer=_begin) as pool:
        for each in pool.map(partial(_try, schedule), range(seed, seed + num_schedules), chunksize=5):
            went.append(each)
            if each.problem:
                print(f"  {schedule.__name__}, seed {each.seed}: {each.problem}", file=sys.stderr, flush=True)
    return went


def _begin() -> None:
    torch.set_num_threads(1)
    logging.getLogger("multiworld").setLevel(logging.ERROR)


def _try(schedule: Callable[[int], Disturbed], seed: int) -> _Went:
    try:
        disturbed = schedule(seed)
    except AssertionError as error:
        return _Went(seed=seed, problem=str(error))
    except Exception:  # of the engine, on one of the members
        return _Went(seed=seed, problem=traceback.format_exc())
    report = disturbed.report
    problem = str(report) if report.problems else ""
    return _Went(seed=seed, problem=problem, longest_s=disturbed.longest_s, steps=report.steps, hit=disturbed.hit)
