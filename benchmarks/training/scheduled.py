"""Schedules of failures: by the hundred with the real decisions and no processes, and some with processes."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Sequence

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median, percentile

from ..elastic.job import TrialFailed
from .disturbed import ENDLESS, HANG_S
from .orders import RECOVERY_PHASES
from .run import Run
from .sides import OURS
from .simulated.schedules import hit_in_recovery, killed_at_random

__all__ = ["schedules", "simulated"]

NUM_KILL_SCHEDULES, NUM_SCHEDULES = 1000, 500
FIRST_PHASES = ("forward", "backward", "all-reduce", "commit", "optimizer")
REPLACED_S = 30.0


def simulated(seed: int) -> list[Line]:
    """Random kills in any phase, with the real dealing, positions, agreement and check of the ledger."""
    hit: Counter[str] = Counter()
    wrong = steps = 0
    for number in range(NUM_KILL_SCHEDULES):
        try:
            training = killed_at_random(seed + number, hit)
            training.go_on_to(max(each.step for each in training.processes.values()) + 3)
            report = training.report()
            problem = str(report) if report.problems else ""
            steps += report.steps
        except AssertionError as error:
            problem = str(error)
        if problem:
            wrong += 1
            print(f"  simulated, seed {seed + number}: {problem}", file=sys.stderr, flush=True)
    return [
        Line(
            name=f"{NUM_KILL_SCHEDULES} kill schedules: those with a sample not once, or a batch of another size",
            unit="",
            value=wrong,
            bound=Bound.at_most(0),
            details={"steps": float(steps), "kills": float(hit.total()), **_kinds(hit)},
        )
    ]


def schedules(num_real: int, seed: int) -> list[Line]:
    """Failures in a recovery: ``num_real`` with processes, the rest of ``NUM_SCHEDULES`` without."""
    return [*_without_processes(max(0, NUM_SCHEDULES - num_real), seed), *_with_processes(num_real, seed)]


def _without_processes(num_schedules: int, seed: int) -> list[Line]:
    hit: Counter[str] = Counter()
    took: list[float] = []
    failed = 0
    for number in range(num_schedules):
        try:
            training, next_step_s = hit_in_recovery(seed + number, hit)
            took.append(next_step_s)
            training.go_on_to(max(each.step for each in training.processes.values()) + 3)
            failed += bool(training.report().problems)
        except AssertionError as error:
            failed += 1
            print(f"  schedules, seed {seed + number}: {error}", file=sys.stderr, flush=True)
    return [
        Line(
            name=f"{num_schedules} simulated schedules, until the next step: worst",
            unit="s",
            value=max(took, default=0.0),
            bound=Bound.at_most(HANG_S),
            details={"p95": percentile(took, 95), "median": median(took), **_kinds(hit)},
            note="the simulation's clock",
        ),
        Line(name="simulated schedules that failed", unit="", value=failed, bound=Bound.at_most(0)),
    ]


def _kinds(hit: Counter[str]) -> dict[str, float]:
    return {name: float(count) for name, count in sorted(hit.items())}


def _with_processes(num_schedules: int, seed: int) -> list[Line]:
    """One of four is killed in a step, and another one in a phase of the recovery."""
    random_ = random.Random(seed)
    plan = [*itertools.islice(itertools.cycle(RECOVERY_PHASES), num_schedules)]
    by_phase: dict[str, list[float]] = {}
    failed = 0
    while plan:
        with Run(OURS, options=ENDLESS) as run:
            try:
                run.start()
                after = 0.0
                while plan:
                    phase = plan.pop()
                    first, second = random_.sample(range(4), 2)
                    after, seconds = _kill_two(run, first, second, random_.choice(FIRST_PHASES), phase, after)
                    by_phase.setdefault(phase, []).append(seconds)
                    print(f"  rank {first} killed, and rank {second} in {phase}: {seconds:.2f} s", flush=True)
            except TrialFailed as error:
                failed += 1
                print(f"  schedules, rank {second} in {phase}: {error}", file=sys.stderr, flush=True)
                run.show()
    took = [seconds for each in by_phase.values() for seconds in each]
    medians = {phase: median(each) for phase, each in sorted(by_phase.items())}
    lines = [Line(name="schedules with processes that failed", unit="", value=failed, bound=Bound.at_most(0))]
    if took:
        lines.append(_slowest(took, num_schedules, medians))
    return lines


def _slowest(took: Sequence[float], num_schedules: int, medians: dict[str, float]) -> Line:
    return Line(
        name=f"{num_schedules} schedules with processes, until the survivors' next step: worst",
        unit="s",
        value=max(took),
        bound=Bound.at_most(HANG_S),
        details={"median": median(took), **medians},
    )


def _kill_two(run: Run, first: int, second: int, phase: str, then: str, after: float) -> tuple[float, float]:
    """Return when the second was killed, and how long the survivors then took to their next step."""
    run.await_steady(after=after, timeout_s=REPLACED_S)
    if then == "receive":  # the replacement of the first is the second
        second = first
    strike = run.strike([first], phase, then=(second, then), timeout_s=HANG_S + REPLACED_S)
    return strike.at, run.recovery_s(strike, HANG_S)
