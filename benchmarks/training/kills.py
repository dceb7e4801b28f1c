"""One of four replicas is killed in an exact phase of a step: until the survivors commit, and until it is replaced."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median, percentile

from ..elastic.job import TrialFailed
from .orders import PHASES
from .run import Run, Strike
from .sides import OURS, TORCHFT, TORCHRUN, Side

__all__ = [
    "ENDLESS",
    "RECOVER_S",
    "REPLACED_S",
    "Kills",
    "kill_torchft",
    "kill_torchrun",
    "kills",
    "longest_pause",
    "rejoined",
]

ENDLESS = ["--steps", "1000000"]
NUM_MICRO_BATCHES = 16
RECOVER_S = 10.0  # ours is far below it; else the trial has failed
PEER_S = 60.0
REPLACED_S = 30.0


@dataclass
class Kills:
    """What was measured at each kill."""

    seconds: list[float] = field(default_factory=list)
    by_phase: dict[str, list[float]] = field(default_factory=dict)
    rejoin_s: list[float] = field(default_factory=list)
    pause_s: list[float] = field(default_factory=list)
    redone: list[int] = field(default_factory=list)
    excess: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def kills(alternations: int, num_kills: int, seed: int) -> list[Line]:
    """``num_kills`` of ours in all, as many kinds of them as there are, between ``alternations`` of each peer."""
    random_ = random.Random(seed)
    found, torchrun, torchft = Kills(), [], []
    plan = _plan(random_, num_kills)
    share = -(-num_kills // alternations)
    for number in range(alternations):
        kill_ours(found, plan[number * share : (number + 1) * share])
        torchrun.append(kill_torchrun(random_.randrange(4)))
        torchft.append(kill_torchft(random_.randrange(4)))
        print(f"  killed, peers {number + 1}: torchrun {torchrun[-1]:.2f} s, torchft {torchft[-1]:.2f} s", flush=True)
    return _lines(found, torchrun, torchft)


def kill_ours(found: Kills, plan: Sequence[tuple[int, str]]) -> None:
    """Kill along the plan in one training after the other: a new one begins when one has failed."""
    plan = list(plan)
    while plan:
        with Run(OURS, options=ENDLESS) as run:
            try:
                run.start()
                after = 0.0
                while plan:
                    rank, phase = plan.pop(0)
                    after = _kill_once(run, rank, phase, found, after)
            except TrialFailed as error:
                found.failed.append(str(error))
                print(f"  killed: rank {rank} in {phase}: {error}", file=sys.stderr, flush=True)
                run.show()


def _kill_once(run: Run, rank: int, phase: str, found: Kills, after: float) -> float:
    run.await_steady(after=after)
    strike = _strike(run, rank, phase)
    took = run.recovery_s(strike, RECOVER_S)
    run.await_steady(after=strike.at, steps=1, timeout_s=REPLACED_S)
    entries = [entry for entry in run.journal.entries if entry.at > strike.at]
    rejoin = rejoined(run, strike) - strike.at
    pause = longest_pause(run, strike, strike.at + took, strike.at + rejoin)
    found.seconds.append(took)
    found.by_phase.setdefault(phase, []).append(took)
    found.rejoin_s.append(rejoin)
    found.pause_s.append(pause)
    redone = [entry["redone"] for entry in entries if entry.event == "commit" and entry.pid in strike.survivors]
    share = -(-NUM_MICRO_BATCHES // (len(strike.survivors) + len(strike.entries)))
    found.redone.append(max(redone, default=0))
    found.excess.append(found.redone[-1] - share)
    print(
        f"  killed rank {rank} in {phase}: {took:.3f} s; replaced after {rejoin:.2f} s, pause {pause:.3f} s; "
        f"redone {found.redone[-1]}",
        flush=True,
    )
    return strike.at


def _strike(run: Run, rank: int, phase: str) -> Strike:
    if phase not in ("transfer", "receive"):
        return run.strike([rank], phase)
    if phase == "transfer":  # in one order: the transfer may be over before a second one is there
        both = run.strike([(rank + 1) % 4], "backward", then=(rank, phase))
        hit = [entry for entry in both.entries if entry["phase"] == phase]
        pids = {entry.pid for entry in hit}
        return Strike(hit[-1].at, hit, [pid for pid in both.survivors if pid not in pids])
    first = run.strike([(rank + 1) % 4], "backward")
    second = run.strike(first.ranks, phase)
    second.survivors = first.survivors
    return second


def rejoined(run: Run, strike: Strike) -> float:
    """Return when the last replacement of those that were struck committed its first step."""
    hit = {entry.pid for entry in strike.entries}
    first: dict[int, float] = {}
    for pid, commits in run.commits(strike.at).items():
        rank = int(commits[0]["rank"])
        if rank in strike.ranks and pid not in hit:
            first[rank] = commits[0].at
    return max(first.values())


def longest_pause(run: Run, strike: Strike, begin: float, end: float) -> float:
    """Return the longest time between two steps of a survivor, from its recovery until the replacement takes part."""
    longest = 0.0
    for pid, entries in run.commits(begin).items():
        times = [entry.at for entry in entries if entry.at <= end + 1.0]
        if pid in strike.survivors:
            longest = max([longest, *(b - a for a, b in itertools.pairwise(times))])
    return longest


def kill_torchrun(rank: int, side: Side = TORCHRUN) -> float:
    """Return from the kill to the first step that a process commits after the restart."""
    with Run(side, options=[*ENDLESS, "--checkpoint-every", "20"]) as run:
        run.start()
        run.await_steady(steps=25)
        return run.restart_s(run.strike([rank], "backward"), PEER_S)


def kill_torchft(rank: int) -> float:
    """Return the same of torchft: until all survivors go on; ``PEER_S`` if they never do."""
    with Run(TORCHFT, options=ENDLESS) as run:
        run.start()
        run.await_steady(steps=4)
        strike = run.strike([rank], "backward")
        began = time.monotonic()
        try:
            return run.recovery_s(strike, PEER_S)
        except TrialFailed as error:
            print(f"  killed: {error} (waited {time.monotonic() - began:.0f} s)", file=sys.stderr)
            return PEER_S


def _plan(random_: random.Random, num_kills: int) -> list[tuple[int, str]]:
    kinds = [(rank, phase) for rank in range(4) for phase in PHASES]
    plan: list[tuple[int, str]] = []
    while len(plan) < num_kills:
        random_.shuffle(kinds)
        plan += kinds
    return plan[:num_kills]


def next_step_lines(
    found: Kills, torchrun: Sequence[float], *, killed: str, ours: str, p50_s: float, p95_s: float
) -> list[Line]:
    """Return when the survivors' next step came, and torchrun's. ``killed``: how the first line is called."""
    median_s, phases = median(found.seconds), {phase: median(each) for phase, each in sorted(found.by_phase.items())}
    return [
        Line(
            name=f"{killed}, until the survivors' next step: p50",
            unit="s",
            value=median_s,
            bound=Bound.at_most(p50_s),
            details={"kills": float(len(found.seconds)), "worst": max(found.seconds), **phases},
        ),
        Line(name="the same: p95", unit="s", value=percentile(found.seconds, 95), bound=Bound.at_most(p95_s)),
        Line(name="kills after which no step came", unit="", value=len(found.failed), bound=Bound.at_most(0)),
        Line(
            name=f"torchrun + checkpoint over {ours}",
            unit="",
            value=median(torchrun) / median_s,
            bound=Bound(at="least", limit=5.0),
            details={"torchrun": median(torchrun), "ours": median_s},
        ),
    ]


def _lines(found: Kills, torchrun: Sequence[float], torchft: Sequence[float]) -> list[Line]:
    if not found.seconds:
        return [Line.not_measured("killed", "; ".join(found.failed[:3]))]
    never = sum(each >= PEER_S for each in torchft)
    return [
        *next_step_lines(found, torchrun, killed="killed", ours="ours", p50_s=0.3, p95_s=1.0),
        Line(
            name="torchft, until the survivors' next step",
            unit="s",
            value=median(torchft),
            details={"best": min(torchft), "worst": max(torchft), "kills": float(len(torchft)), "never": float(never)},
            note=f"{never} of {len(torchft)} never went on within {PEER_S:g} s",
        ),
        Line(name="the replacement takes part: median", unit="s", value=median(found.rejoin_s)),
        Line(
            name="the replacement takes part: p95",
            unit="s",
            value=percentile(found.rejoin_s, 95),
            bound=Bound.at_most(3.0),
        ),
        Line(
            name="longest pause of the others until then: p95",
            unit="s",
            value=percentile(found.pause_s, 95),
            bound=Bound.at_most(0.55),
            details={"worst": max(found.pause_s)},
        ),
        Line(
            name="micro-batches computed again after a death, above the dead one's share: worst",
            unit="",
            value=max(found.excess),
            bound=Bound.at_most(0),
            details={"of 16: worst": max(found.redone), "median": median(found.redone)},
        ),
    ]
