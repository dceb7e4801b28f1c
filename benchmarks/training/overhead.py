"""What a training costs while nothing fails: the time of a step beside plain DDP, and torchft's in the same turns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs, median

from ..elastic.job import TrialFailed
from .run import Run
from .sides import OURS, PLAIN, TORCHFT, Side

__all__ = ["WARM_UP", "Case", "alternate", "checkpoints", "extremes", "overhead"]

WARM_UP = 30  # steps; the first are slower on all sides
BLOCK = 20  # steps
SAVING_WARM_UP = 120  # steps; the process that writes checkpoints loads code for some 3 s
WAIT_S = 240.0


@dataclass(frozen=True)
class Case:
    """``micro_batch`` samples are computed at once; a step has ``num_micro_batches`` of them, over all replicas."""

    name: str
    micro_batch: int
    num_micro_batches: int

    @property
    def options(self) -> list[str]:
        global_batch = self.micro_batch * self.num_micro_batches
        return ["--micro-batch", str(self.micro_batch), "--global-batch", str(global_batch)]


CASES = (Case("one micro-batch a replica", 8, 4), Case("four micro-batches a replica", 2, 16))


def step_ms(side: Side, options: Sequence[str], steps: int, num_replicas: int = 4) -> float:
    """Train so many steps after the warm-up, and return what one took on average, on the slowest rank."""
    with Run(side, num_replicas, [*options, "--steps", str(WARM_UP + steps + 1)]) as run:
        run.start()
        run.finish(WAIT_S)
        times = []
        for entries in run.commits().values():
            by_step = {entry["step"]: entry.at for entry in entries}
            if WARM_UP in by_step and WARM_UP + steps in by_step:
                times.append((by_step[WARM_UP + steps] - by_step[WARM_UP]) / steps * 1e3)
        if not times:
            raise TrialFailed(f"{side.name}: no rank committed all steps")
        return max(times)


def overhead(alternations: int, steps: int) -> list[Line]:
    lines = []
    for case in CASES:
        times = alternate(case.name, [PLAIN, OURS, TORCHFT], case.options, alternations, steps)
        ours, plain, torchft = times[OURS.name], times[PLAIN.name], times[TORCHFT.name]
        name = f"a step, {case.name}"
        lines.append(Line.of_pairs(name, "ms", Pairs(ours, plain), Bound.ratio_at_most(1.02), extremes(ours)))
        if all(torchft):
            lines.append(
                Line.of_pairs(f"{name}: ours beside torchft", "ms", Pairs(ours, torchft), Bound.ratio_at_most(1.0))
            )
        else:
            failed = sum(not each for each in torchft)
            lines.append(Line.not_measured(f"{name}: ours beside torchft", f"{failed} trainings of torchft failed"))
    return lines


def checkpoints(alternations: int, steps: int) -> list[Line]:
    """A checkpoint every 20 steps, of some 50 ms, beside none. Each of them has to be written.

    Two trainings differ by more than a checkpoint costs, and so do two minutes of one machine. So each training saves
    every 40 steps: the 20 steps after a checkpoint, in which it is written, beside the 20 after these. The process that
    writes is started once in a training; its start is part of the warm-up.
    """
    saving = replace(OURS.having("ours, saving", "--save-every", str(2 * BLOCK)), saves=True)
    after, without = [], []
    for number in range(alternations):
        blocks = _blocks(saving, CASES[1].options, 2 * steps)
        after += [with_ms for with_ms, _ in blocks]
        without += [without_ms for _, without_ms in blocks]
        ratio = median([with_ms / without_ms for with_ms, without_ms in blocks])
        print(f"  checkpoints, training {number + 1}/{alternations}: {ratio:.3f} of {len(blocks)} pairs", flush=True)
    pairs = Pairs(after, without)
    return [Line.of_pairs("a step, a checkpoint every 20", "ms", pairs, Bound.ratio_at_most(1.02))]


def _blocks(side: Side, options: Sequence[str], steps: int) -> list[tuple[float, float]]:
    """Return what a step took, on the slowest rank, after each checkpoint, and after that block."""
    last = SAVING_WARM_UP + steps
    with Run(side, 4, [*options, "--steps", str(last + 1)]) as run:
        run.start()
        run.finish(WAIT_S)
        begins = range(SAVING_WARM_UP, last, 2 * BLOCK)
        saved = {int(entry["step"]) for entry in run.journal.entries if entry.event == "saved"}
        if missing := set(begins) - saved:
            raise TrialFailed(f"{side.name}: there are no checkpoints of the steps {sorted(missing)}")
        ends: dict[int, float] = {}
        for entries in run.commits().values():
            for entry in entries:
                ends[entry["step"]] = max(entry.at, ends.get(entry["step"], 0.0))

        def mean_ms(begin: int) -> float:
            return (ends[begin + BLOCK - 1] - ends[begin - 1]) / BLOCK * 1e3

        return [(mean_ms(begin), mean_ms(begin + BLOCK)) for begin in begins]


def alternate(
    name: str, sides: Sequence[Side], options: Sequence[str], alternations: int, steps: int
) -> dict[str, list[float]]:
    """Return the times of each side; 0 for a training of a peer that failed."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(alternations):
        for side in sides:
            try:
                took = step_ms(side, options, steps)
            except TrialFailed as error:
                if side is not TORCHFT:
                    raise
                print(f"{name}: {error}", file=sys.stderr)
                took = 0.0
            times[side.name].append(took)
            print(f"  {name}, {side.name} {number + 1}/{alternations}: {took:.2f} ms", flush=True)
    for side in sides:
        print(f"  {name}, {side.name}: median {median(times[side.name]):.2f} ms", flush=True)
    return times


def extremes(values: Sequence[float]) -> dict[str, float]:
    return {"best": min(values), "worst": max(values)}
