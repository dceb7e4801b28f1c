"""Schedules of failures in trainings in pipelines: in a recovery, two at once, the coordinator, hosts cut off."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median
from multiworld.testing import hosts_available

from ..elastic.job import TrialFailed
from .disturbed import HANG_S, Partition, cut, kill_agent
from .kills import ENDLESS, REPLACED_S
from .orders import ANY, RECOVERY_PHASES
from .pipeline_kills import STEP_PHASES
from .run import Run
from .scheduled_pipelines import simulated_recoveries
from .sides import OURS_PIPELINES

__all__ = ["pipeline_schedules"]

NUM_PROCESSES = 6
"""Three pipelines of two stages: any two losses leave each layer with somebody."""

AT_ONCE = "at once"
KINDS = (AT_ONCE, *RECOVERY_PHASES, "owners")
"""In the order in which they are done, so that few schedules have two at once, too."""

EACH_AGENT = 10
"""Of so many schedules one kills the coordinator's agent, and one cuts a host off."""

PARTITIONS = (  # two halves of four lack a layer, if each has two of the same stage: see the simulated schedules
    Partition("a host of four cut off", 4, frozenset({3})),
    Partition("the coordinator's host of four cut off", 4, frozenset({0})),
)


def pipeline_schedules(num_schedules: int, num_in_all: int, seed: int) -> list[Line]:
    """``num_schedules`` with processes, the rest of ``num_in_all`` without."""
    lines = simulated_recoveries(max(0, num_in_all - num_schedules), seed)
    return [*lines, *_with_all_kinds(num_schedules, seed)]


def _with_all_kinds(num_schedules: int, seed: int) -> list[Line]:
    random_ = random.Random(seed)
    by_kind: dict[str, list[float]] = {}
    failed = 0
    num_apart = max(1, num_schedules // EACH_AGENT)
    for number in range(num_apart):
        failed += _kill_coordinator(by_kind)
        if hosts_available() is None:
            failed += _cut_off(PARTITIONS[number % len(PARTITIONS)], by_kind)
    failed += _with_processes(max(0, num_schedules - 2 * num_apart), random_, by_kind)
    return _lines(by_kind, failed)


def _kill_coordinator(by_kind: dict[str, list[float]]) -> int:
    """Kill the coordinator's agent of three, with its two processes. Returns 1 if the others do not go on."""
    try:
        seconds = kill_agent(0, OURS_PIPELINES)
    except TrialFailed as error:
        print(f"  pipelines, the coordinator killed: {error}", file=sys.stderr, flush=True)
        return 1
    by_kind.setdefault("the coordinator", []).append(seconds)
    print(f"  pipelines, the coordinator killed: {seconds:.2f} s", flush=True)
    return 0


def _cut_off(partition: Partition, by_kind: dict[str, list[float]]) -> int:
    """Return 1 if the others do not go on, or if steps are committed on both sides."""
    try:
        seconds, both = cut(partition, OURS_PIPELINES)
    except TrialFailed as error:
        print(f"  pipelines, {partition.name}: {error}", file=sys.stderr, flush=True)
        return 1
    by_kind.setdefault("cut off", []).append(seconds)
    print(f"  pipelines, {partition.name}: {seconds:.2f} s, {both} steps on both sides", flush=True)
    return int(both > 0)


def _with_processes(num_schedules: int, random_: random.Random, by_kind: dict[str, list[float]]) -> int:
    """Return how many of these did not go on. A new training begins after each of them."""
    plan = list(itertools.islice(itertools.cycle(KINDS), num_schedules))
    failed = 0
    while plan:
        with Run(OURS_PIPELINES, NUM_PROCESSES, ENDLESS) as run:
            try:
                run.start()
                after = 0.0
                while plan:
                    kind = plan.pop(0)
                    after, seconds = _kill_two(run, kind, random_, after)
                    by_kind.setdefault(kind, []).append(seconds)
            except TrialFailed as error:
                failed += 1
                print(f"  pipelines, two killed, {kind}: {error}", file=sys.stderr, flush=True)
                run.show()
    return failed


def _kill_two(run: Run, kind: str, random_: random.Random, after: float) -> tuple[float, float]:
    """Return when the second was killed, and how long the survivors then took to their next step."""
    run.await_steady(after=after, timeout_s=REPLACED_S)
    phase = random_.choice(STEP_PHASES)
    if kind == AT_ONCE:
        strike = run.strike(random_.sample(range(NUM_PROCESSES), 2), phase)
    else:
        rank = random_.randrange(NUM_PROCESSES)
        strike = run.strike([rank], phase, then=(ANY, kind), timeout_s=HANG_S + REPLACED_S)
    seconds = run.recovery_s(strike, HANG_S)
    print(f"  pipelines, ranks {strike.ranks} killed, {kind}: {seconds:.2f} s", flush=True)
    return max(entry.at for entry in strike.entries), seconds


def _lines(by_kind: dict[str, list[float]], failed: int) -> list[Line]:
    took: Sequence[float] = [seconds for each in by_kind.values() for seconds in each]
    lines = [Line(name="schedules with pipelines that failed", unit="", value=failed, bound=Bound.at_most(0))]
    if took:
        lines.append(
            Line(
                name=f"{len(took)} schedules with pipelines, until the survivors' next step: worst",
                unit="s",
                value=max(took),
                bound=Bound.at_most(HANG_S),
                details={kind: median(each) for kind, each in sorted(by_kind.items())},
            )
        )
    return lines
