"""Make the best template of each size on given nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from ..arrays import Ints
from ..nodes import Node
from ..profile import Profile
from ..template import Schedule, Stage, Template
from .candidates import Candidates, Judge
from .finding import find_best, ways_to_fit
from .interleaved import best_interleaved
from .places import Places
from .search import Search
from .segments import Segments


def best_templates(
    profile: Profile,
    nodes: Sequence[Node],
    sizes: Sequence[int],
    counts: Sequence[int],
    *,
    schedules: Collection[Schedule] = (Schedule.ONE_F_ONE_B,),
    refine: bool = True,
) -> dict[int, Template]:
    """Return the fastest template that was found for each size; none for sizes that do not fit.

    A template of ``size`` has the last ``size`` of ``nodes``, in order. ``counts``: micro-batches of a step of each
    size. ``schedules``: those to choose from; a layer whose ``weight_backward_s`` is 0 has nothing to put off.
    ``refine``: look on from the best candidates, and not only at them.
    """
    best: dict[int, Template] = {}
    for devices, per_node in layouts(profile, min(each.devices for each in nodes)):
        fitting = [
            (size, each) for size, each in zip(sizes, counts, strict=True) if size * per_node <= profile.num_layers
        ]
        if fitting and not set(schedules) <= {Schedule.INTERLEAVED}:
            places = Places.of(nodes, devices, per_node)
            for template in _of_layout(profile, places, dict(fitting), schedules, refine=refine):
                known = best.get(template.num_nodes)
                if known is None or template.iteration_s < known.iteration_s:
                    best[template.num_nodes] = template
        if per_node == 1 and Schedule.INTERLEAVED in schedules:
            for size, count in [each for each in fitting if each[0] > 1]:
                limit_s = best[size].iteration_s if size in best else float("inf")
                found = best_interleaved(profile, nodes[-size:], count, devices=devices, limit_s=limit_s)
                if found is not None:
                    best[size] = found
    return best


def layouts(profile: Profile, devices: int) -> list[tuple[int, int]]:
    """Return how a node may be used: devices of a stage, as far as the profile has them, and stages on the node."""
    measured = [1, *sorted(each for each in profile.sharded if 1 < each <= devices)]
    return [(each, per_node) for each in measured for per_node in range(1, devices // each + 1)]


def _of_layout(
    profile: Profile, places: Places, counts: dict[int, int], schedules: Collection[Schedule], *, refine: bool
) -> list[Template]:
    """Return templates of one layout. ``counts``: micro-batches of a step, by number of nodes."""
    by_stages = np.ones(places.num_stages + 1, np.int64)
    for size, count in counts.items():
        by_stages[size * places.per_node] = count
    judge = Judge(segments=Segments.of(profile, places.devices), places=places, counts=by_stages)
    search = Search(judge)
    ways = ways_to_fit(judge, schedules)
    find_best(search, judge, [size * places.per_node for size in counts], ways, refine=refine)
    return [_template(search.found[each], search.times_s[each], judge) for each in sorted(search.found)]


def _template(best: Candidates, seconds: float, judge: Judge) -> Template:
    (cuts,) = best.cuts
    used = [(first, end) for first, end in pairwise(cuts.tolist()) if end > first]
    count = int(judge.counts[len(used)])
    return Template(
        num_nodes=len(used) // judge.places.per_node,
        stages=tuple(
            Stage(first=first, end=end, node=index // judge.places.per_node, devices=judge.places.devices)
            for index, (first, end) in enumerate(used)
        ),
        num_micro_batches=count,
        iteration_s=float(seconds),
        max_in_flight=tuple(_in_flight(best, judge)[-len(used) :].tolist()),
        schedule=Schedule.ZERO_BUBBLE if best.split[0] else Schedule.ONE_F_ONE_B,
        recompute=bool(best.recompute[0]),
    )


def _in_flight(best: Candidates, judge: Judge) -> Ints:
    """Return how many micro-batches each stage may hold: what the schedule wants, also with more than in this step.

    What does not fit then is limited to what this step has.
    """
    limits: Ints = best.held[:, 0]
    first, end = best.cuts[0, :-1], best.cuts[0, 1:]
    needed = judge.segments.needed_bytes(first, end, limits, recompute=bool(best.recompute[0]))
    if ((end == 0) | (needed <= judge.places.memory_bytes)).all():
        return limits
    fewer: Ints = np.minimum(limits, judge.counts[best.num_stages[0]])
    return fewer
