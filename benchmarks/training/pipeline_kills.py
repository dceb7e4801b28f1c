"""A rank of a training in pipelines is killed in an exact phase, of a step or of the recovery from another loss."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from multiworld.bench.report import Line
from multiworld.bench.samples import median, percentile

from ..elastic.job import TrialFailed
from .kills import ENDLESS, RECOVER_S, REPLACED_S, Kills, kill_torchrun, longest_pause, next_step_lines, rejoined
from .orders import ANY
from .run import Run, Strike
from .sides import OURS_PIPELINES, TORCHRUN_PIPELINES

__all__ = ["pipeline_kills", "strike"]

STEP_PHASES = ("forward", "backward", "all-reduce", "commit", "optimizer")
RECOVERY_PHASES = ("form", "owners", "transfer", "receive")
"""``owners``: the worlds of those that hold the same layers are formed. The first rank that gets there is killed."""

NUM_STRUCK_IN_STEP, NUM_STRUCK_IN_RECOVERY = 4, 6
"""Processes, as pipelines of two stages. With six each layer has a second owner left after the first loss."""

MAX_SKIPPED = 4


def pipeline_kills(alternations: int, num_kills: int, seed: int) -> list[Line]:
    """``num_kills`` of ours in all, between ``alternations`` of the peer."""
    random_ = random.Random(seed)
    found, torchrun = Kills(), []
    plan = _plan(random_, num_kills)
    share = -(-num_kills // alternations)
    for number in range(alternations):
        part = plan[number * share : (number + 1) * share]
        for num_processes in (NUM_STRUCK_IN_STEP, NUM_STRUCK_IN_RECOVERY):
            is_in_step = num_processes == NUM_STRUCK_IN_STEP
            kill_pipelines(
                found, [each for each in part if (each in STEP_PHASES) == is_in_step], num_processes, random_
            )
        torchrun.append(kill_torchrun(random_.randrange(4), TORCHRUN_PIPELINES))
        print(f"  pipelines killed, torchrun {number + 1}: {torchrun[-1]:.2f} s", flush=True)
    return _lines(found, torchrun)


def kill_pipelines(found: Kills, phases: Sequence[str], num_processes: int, random_: random.Random) -> None:
    """Kill in these phases in one training after the other: a new one begins when one has failed."""
    left = list(phases)
    while left:
        with Run(OURS_PIPELINES, num_processes, ENDLESS) as run:
            try:
                run.start()
                after = 0.0
                while left:
                    phase = left.pop(0)
                    after = _kill_once(run, phase, found, after, random_)
            except TrialFailed as error:
                found.failed.append(str(error))
                print(f"  pipelines killed, in {phase}: {error}", file=sys.stderr, flush=True)
                run.show()


def _kill_once(run: Run, phase: str, found: Kills, after: float, random_: random.Random) -> float:
    run.await_steady(after=after)
    struck = strike(run, phase, random_)
    took = run.recovery_s(struck, RECOVER_S)
    run.await_steady(after=struck.at, steps=1, timeout_s=REPLACED_S)
    rejoin = rejoined(run, struck) - struck.at
    found.seconds.append(took)
    found.by_phase.setdefault(phase, []).append(took)
    found.rejoin_s.append(rejoin)
    found.pause_s.append(longest_pause(run, struck, struck.at + took, struck.at + rejoin))
    print(
        f"  pipelines, killed rank {struck.ranks} in {phase}: {took:.3f} s; replaced after {rejoin:.2f} s, "
        f"pause {found.pause_s[-1]:.3f} s",
        flush=True,
    )
    return struck.at


def strike(run: Run, phase: str, random_: random.Random) -> Strike:
    """Kill a random rank in a phase of a step; or one, and then the first to reach that phase of the recovery."""
    rank = random_.randrange(run.num_replicas)
    if phase in STEP_PHASES:
        skip = random_.randrange(MAX_SKIPPED) if phase in ("forward", "backward") else 0
        return run.strike([rank], phase, skip=skip)
    return run.strike([rank], "backward", then=(ANY, phase))


def _plan(random_: random.Random, num_kills: int) -> list[str]:
    plan: list[str] = []
    while len(plan) < num_kills:
        kinds = [*STEP_PHASES, *RECOVERY_PHASES]
        random_.shuffle(kinds)
        plan += kinds
    return plan[:num_kills]


def _lines(found: Kills, torchrun: Sequence[float]) -> list[Line]:
    if not found.seconds:
        return [Line.not_measured("pipelines, killed", "; ".join(found.failed[:3]))]
    return [
        *next_step_lines(found, torchrun, killed="pipelines, killed", ours="pipelines", p50_s=1.0, p95_s=2.0),
        Line(name="the replacement takes part: median", unit="s", value=median(found.rejoin_s)),
        Line(name="longest pause of the others until then: p95", unit="s", value=percentile(found.pause_s, 95)),
    ]
