"""Faults of single workers, on one host: they are killed, and stopped, once and a hundred times."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from multiworld.bench.report import Bound, Line

from .comparison import Comparison, Outcome
from .job import OURS, OURS_PLAIN, SPARES, TORCHRUN, Job, Side
from .journal import Formation
from .recovery import Setting, recover, signal_worker, try_fault

__all__ = ["kill", "launch", "restarts", "stop"]

SIZE = 4
LEASE_S = 2.0  # the default of --lease-s
LAUNCH_RATIO, RECOVERY_RATIO = 0.7, 0.6
SPARE_S = 0.5
SETTLE_S = 1.0  # a spare is forked when all that was ordered runs
RECOVERY_CAP_S = 30.0
ONE_OF_FOUR = Setting(per_node=SIZE, lost=1, left=SIZE, settle_s=SETTLE_S)


def launch(alternations: int, cap_s: float) -> list[Line]:
    """From the command to the first all_reduce of four workers."""

    def trial(side: Side) -> Outcome:
        with Job(side) as job:
            [node] = job.start()
            formation = job.await_world(SIZE, node.started_at)
            job.end()
            return Outcome(formation.complete_at - node.started_at)

    comparison = Comparison("launch of 1x4", [OURS, OURS_PLAIN, TORCHRUN], cap_s=cap_s)
    comparison.run(trial, alternations)
    bound = Bound.ratio_at_most(LAUNCH_RATIO)
    return comparison.lines({OURS.name: bound, OURS_PLAIN.name: bound})


def kill(alternations: int, cap_s: float) -> list[Line]:
    """From SIGKILL of one of four workers to the next all_reduce of all four."""
    comparison = Comparison("worker killed", [OURS, SPARES, OURS_PLAIN, TORCHRUN], cap_s=min(cap_s, RECOVERY_CAP_S))
    comparison.run(lambda side: _fault(side, signal.SIGKILL, comparison.cap_s), alternations)
    ratio = Bound.ratio_at_most(RECOVERY_RATIO)
    return comparison.lines({OURS.name: ratio, SPARES.name: Bound.at_most(SPARE_S), OURS_PLAIN.name: ratio})


def stop(alternations: int, cap_s: float) -> list[Line]:
    """From SIGSTOP of one of four workers to the next all_reduce of all four."""
    comparison = Comparison("worker stopped", [OURS, SPARES, OURS_PLAIN, TORCHRUN], cap_s=cap_s)
    comparison.run(lambda side: _fault(side, signal.SIGSTOP, cap_s), alternations)
    # 0.6 of the 2.9 s that torchrun takes after a kill at best; what it takes today, the line of the kill shows
    bound = Bound.at_most(LEASE_S + RECOVERY_RATIO * 2.9)
    spare = Bound.at_most(LEASE_S + LEASE_S / 4 + SPARE_S)  # it is looked four times per lease
    return comparison.lines({OURS.name: bound, SPARES.name: spare, OURS_PLAIN.name: bound})


def restarts(times: int, programs: Sequence[Side] = (OURS, OURS_PLAIN)) -> list[Line]:
    """Kill a random worker again and again, as soon as all have reduced again."""
    return [line for side in programs for line in _again_and_again(side, times)]


def _again_and_again(side: Side, times: int) -> list[Line]:
    comparison = Comparison(f"{times} restarts in a row", [side], cap_s=RECOVERY_CAP_S)
    recovered = 0
    with Job(side, max_restarts=times) as job:
        job.start()
        formation = job.await_world(SIZE, 0.0)

        def again(_: Side) -> Outcome:
            nonlocal formation, recovered
            recovery = recover(job, formation, signal_worker(signal.SIGKILL), lost=1, left=SIZE, cap_s=RECOVERY_CAP_S)
            formation = recovery.after
            recovered += 1
            return Outcome(recovery.seconds, {**_differences(formation), **recovery.wrong})

        comparison.run(again, times)
        job.end()
    bound = Bound(at="least", limit=times)
    name = f"{times} restarts in a row, {side.name}: recovered"
    return [*comparison.lines({}), Line(name=name, unit="", value=recovered, bound=bound)]


def _fault(side: Side, signum: int, cap_s: float) -> Outcome:
    return try_fault(side, ONE_OF_FOUR, signal_worker(signum), cap_s).outcome()


def _differences(formation: Formation) -> dict[str, int]:
    """Return how much that must be equal on all ranks is not."""
    names = {"master": "MASTER_ADDR:MASTER_PORT", "generation": "generation", "job_generation": "generation of the job"}
    return {f"worlds in which {what} differed": int(len(formation.different(name)) > 1) for name, what in names.items()}
