"""What a step of pipelines takes: beside torch's, as templates say, and before and after a process has joined."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs, median

from .kills import ENDLESS
from .overhead import WARM_UP, Case, alternate, extremes
from .run import Run
from .sides import OURS_PIPELINES, PLAIN_PIPELINES

__all__ = ["joins", "measured", "pipeline_overhead"]

CASE = Case("two pipelines, four micro-batches each", 4, 8)

ROOMY = OURS_PIPELINES.having(OURS_PIPELINES.name, "--room", "1.5")
"""Two nodes have room for the model and all its activations, which torch's pipelines keep, too; one has not."""

PACE_S = 0.02
"""Of a layer and micro-batch. Processes that wait are as fast as on a machine of their own, on any number of cores."""

PACED = ["--pace-s", str(PACE_S), "--micro-batch", "1", "--global-batch", "32", "--room", "1.05"]
PADDED = [*PACED[:-1], "0.9", "--padding-mib", "128"]
"""A newcomer gets two layers, and one of the others at least one: hundreds of MiB, over loopback."""
NUM_BEFORE, NUM_STEPS = 4, 15
NUM_MOVING = 15
"""Steps within which layers have come that are moved beside them."""
END_S = 240.0


def pipeline_overhead(alternations: int, steps: int) -> list[Line]:
    times = alternate(CASE.name, [PLAIN_PIPELINES, ROOMY], CASE.options, alternations, steps)
    ours, plain = times[ROOMY.name], times[PLAIN_PIPELINES.name]
    return [Line.of_pairs(f"a step, {CASE.name}", "ms", Pairs(ours, plain), Bound.ratio_at_most(1.02), extremes(ours))]


def measured(alternations: int, steps: int) -> list[Line]:
    """Each layer waits a fixed time: else four processes would share processors, which templates do not know."""
    took, said = [], []
    for number in range(alternations):
        with Run(OURS_PIPELINES, NUM_BEFORE, [*PACED, "--steps", str(WARM_UP + steps)]) as run:
            run.start()
            ends = run.finish(END_S)
            took.append(_step_s(run, 0.0, steps))
            said.append(max(float(entry["predicted_s"]) for entry in ends.values()))
            print(f"  measured {number + 1}/{alternations}: {took[-1]:.3f} s, said {said[-1]:.3f} s", flush=True)
    return [Line.of_pairs("a step, over what its templates say", "s", Pairs(took, said))]


def joins(alternations: int) -> list[Line]:
    """A fifth process joins four. Each layer waits a fixed time, so that five can be faster on two cores, too.

    Twice: with a state that is moved in a pause, and with a large one, which is moved beside the steps.
    """
    small = [_join("small state", PACED, NUM_STEPS, number) for number in range(alternations)]
    large = [_join("large state", PADDED, NUM_STEPS + NUM_MOVING, number) for number in range(alternations)]
    return [*_lines("a process joins", small), *_lines("a process joins, a large state", large)]


@dataclass(frozen=True)
class _Joined:
    """``late_s``: how much longer than one step the others paused at most. ``share``: of proportional throughput."""

    late_s: float
    share: float


def _join(name: str, options: Sequence[str], num_steps: int, number: int) -> _Joined:
    with Run(OURS_PIPELINES, 1, [*ENDLESS, *options]) as run:
        for each in range(NUM_BEFORE):
            run.start_node(num_hosts=NUM_BEFORE + 1)
            if each == 0:
                run.wait(lambda: "this agent coordinates" in run.nodes[0].output, 30.0, "a coordinator")
        old = run.await_steady(NUM_BEFORE, steps=num_steps)
        before_s = _step_s(run, 0.0, NUM_STEPS)
        began = max(entry.at for entry in run.journal.entries)
        run.start_node(num_hosts=NUM_BEFORE + 1)
        run.await_steady(NUM_BEFORE + 1, after=began, steps=num_steps)
        after_s = _step_s(run, began, NUM_STEPS)
        pause_s = _longest_s(run, began, list(old.values()))
    joined = _Joined(pause_s - before_s, before_s / after_s / ((NUM_BEFORE + 1) / NUM_BEFORE))
    print(
        f"  joined, {name} {number + 1}: pause {pause_s:.3f} s; a step {before_s:.3f} s before, {after_s:.3f} s after: "
        f"{joined.share:.3f} of proportional",
        flush=True,
    )
    return joined


def _lines(name: str, joined: Sequence[_Joined]) -> list[Line]:
    late, shares = [each.late_s for each in joined], [each.share for each in joined]
    return [
        Line(
            name=f"{name}: pause of the others, above one step",
            unit="s",
            value=max(late),
            bound=Bound.at_most(0.5),
            details={"median": median(late)},
        ),
        Line(
            name=f"{name}: throughput with it, of what is proportional",
            unit="",
            value=median(shares),
            bound=Bound(at="least", limit=0.95),
            details={"worst": min(shares)},
            note="layers wait, they do not compute",
        ),
    ]


def _step_s(run: Run, after: float, steps: int) -> float:
    """Return the median of what the last steps took, on the slowest process."""
    return max(
        median([b.at - a.at for a, b in itertools.pairwise(entries[-steps - 1 :])])
        for entries in run.commits(after).values()
    )


def _longest_s(run: Run, after: float, pids: Sequence[int]) -> float:
    """Return the longest time between two steps of these processes."""
    commits = run.commits(after)
    return max(b.at - a.at for pid in pids for a, b in itertools.pairwise(commits[pid]))
