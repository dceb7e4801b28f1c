"""Measure a step of DistributedDataParallel over a world, beside the same step over raw Gloo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .options import Options
from .report import Bound, Line
from .samples import Pairs, alternate
from .team import Team

MEMBER = "training_member:TrainingMember"
COUNT, QUICK_COUNT = 10, 2
MAX_LOSS_DIFFERENCE = 1e-6


def steps(backends: Sequence[str], options: Options, bounds: Mapping[str, Bound]) -> list[Line]:
    """Return for each backend the time of a step of two processes, and how far its losses are from the reference's.

    Both train the same model from the same seed on the same data.
    """
    count = QUICK_COUNT if options.quick else COUNT
    lines = []
    with Team(MEMBER, 2) as team:
        team.all("open", backends=backends)

        def time_ms(lane: str) -> float:
            took_s: float = max(team.all("train", lane=lane, count=count))
            return took_s * 1e3

        for backend, samples in alternate(time_ms, backends, options.num_pairs).items():
            lines.append(Line.of_pairs(f"DDP step, {backend}", "ms", Pairs.of(samples), bounds.get(backend)))
            apart: float = max(team.all("loss_difference", lane=backend))
            agree = Bound.at_most(MAX_LOSS_DIFFERENCE)
            lines.append(Line(name=f"DDP losses apart, {backend}", unit="", value=apart, bound=agree))
    return lines
