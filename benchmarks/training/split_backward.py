"""What a split backward (zero-bubble, ZB-H1) saves of a step, beside 1F1B in the same run."""

from __future__ import annotations

import itertools

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs, median

from .overhead import extremes
from .run import Run
from .sides import OURS_PIPELINES

__all__ = ["zero_bubble"]

NUM_MICRO_BATCHES = 6
PACE_S = 0.09
"""Of a layer and micro-batch: so long that what the layers compute, and other load, is a small part of it."""

PACED = (
    *("--pace-s", str(PACE_S), "--pace-weights", "--room", "1.05"),
    *("--micro-batch", "1", "--global-batch", str(NUM_MICRO_BATCHES)),
)
WARM_UP, NUM_STEPS, END_S = 3, 8, 240.0
LIMITS = {2: 0.95, 3: 0.9}
"""For each number of stages. With equal thirds, 1F1B takes (N + S - 1) * 3 of them and ZB-H1 3 * N + S - 1, so that the
ratio could be 0.905 and 0.833 for N = 6; the loss, the optimizer and messages are the same on both sides.
"""


def zero_bubble(alternations: int) -> list[Line]:
    """One pipeline. Each layer waits a fixed time, a third of it where the gradients of its weights are made: so this
    shows what filled bubbles save, and not what a product costs on a processor that both parts share.
    """
    lines = []
    for num_stages, limit in LIMITS.items():
        took: dict[str, list[float]] = {"zero-bubble": [], "1f1b": []}
        for number in range(alternations):
            for schedule, times in took.items():
                times.append(_step_ms(schedule, num_stages))
            said = ", ".join(f"{schedule} {times[-1]:.0f} ms" for schedule, times in took.items())
            print(f"  {num_stages} stages {number + 1}/{alternations}: {said}", flush=True)
        pairs = Pairs(took["zero-bubble"], took["1f1b"])
        name = f"a step of {num_stages} stages with a split backward, of 1F1B's"
        lines.append(Line.of_pairs(name, "ms", pairs, Bound.ratio_at_most(limit), extremes(took["zero-bubble"])))
    return lines


def _step_ms(schedule: str, num_stages: int) -> float:
    """Return what a step takes, on the slowest process: the median, as other load lengthens some of them."""
    side = OURS_PIPELINES.having(schedule, "--schedule", schedule)
    with Run(side, num_stages, [*PACED, "--steps", str(WARM_UP + NUM_STEPS + 1)]) as run:
        run.start()
        run.finish(END_S)
        times = [[entry.at for entry in entries][-NUM_STEPS - 1 :] for entries in run.commits().values()]
    return max(median([1e3 * (b - a) for a, b in itertools.pairwise(each)]) for each in times)
