"""Which candidates a search considers: all partitions if they are few, and balanced ones otherwise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ..template import Schedule
from .candidates import Candidates, Judge, Way
from .partitions import Partitions
from .search import Search, all_partitions, is_few, with_slack

LIMITS = 3  # of the slowest stage, for ways that hold as many micro-batches as their schedule wants


def find_best(search: Search, judge: Judge, sizes: Sequence[int], ways: Sequence[Way], *, refine: bool) -> None:
    """Let the search consider candidates of these numbers of stages. ``refine``: and look on from the best ones."""
    few = [each for each in sizes if is_few(each, judge.segments.num_layers, len(ways), refine=refine)]
    for size in few:
        search.consider(all_partitions(ways, size, judge))
    many = [each for each in sizes if each not in few]
    if many:
        search.consider(_balanced(judge, many, ways))
    if refine:
        search.improve(ways)


def ways_to_fit(judge: Judge, schedules: Collection[Schedule]) -> list[Way]:
    """Return the ways to keep within memory, first those that hold as many micro-batches as their schedule wants.

    The others hold fewer. Only 1F1B computes activations again: gradients of weights that were put off need them.
    """
    width = judge.places.num_stages
    is_limited = bool(np.isfinite(judge.places.memory_bytes).any())
    tried = _in_flight_tried(width) if is_limited else [width]
    ways = []
    if Schedule.ONE_F_ONE_B in schedules:
        ways += [Way(each, recompute=again) for again in (False, True)[: 1 + is_limited] for each in tried]
    if Schedule.ZERO_BUBBLE in schedules and (judge.segments.weight_s[-1] > 0 or not ways):
        ways += [Way(each, split=True) for each in tried]
    return sorted(ways, key=lambda each: not each.is_free(width))


def _in_flight_tried(width: int) -> list[int]:
    tried, each = [width], 1
    while each < width:
        tried.append(each)
        each = max(each + 1, each * 5 // 4)
    return tried


def _balanced(judge: Judge, sizes: Sequence[int], ways: Sequence[Way]) -> Candidates:
    """Return partitions whose slowest stage is nearly as fast as can be.

    Ways that hold fewer micro-batches, or compute again, are tried for sizes whose slowest stage memory makes slower.
    """
    places, most = judge.places, int(judge.counts.max())
    free = [
        Partitions.of(judge.segments, places, most, each)
        for each in ways
        if each.is_free(places.num_stages) and not each.recompute
    ]
    found = [_with_slack(each, sizes, LIMITS) for each in free]
    others = [each for each in ways if not each.is_free(places.num_stages) or each.recompute]
    if others:
        boundless = replace(places, memory_bytes=np.full(places.num_stages, np.inf))
        least_s = Partitions.of(judge.segments, boundless, most, Way(places.num_stages)).least_s[:, 0]
        reached_s = np.min([each.least_s[:, 0] for each in free], axis=0, initial=np.inf)
        tight = [each for each in sizes if reached_s[each] > least_s[each] * (1 + 1e-9)]
        if tight:
            last = places.last(max(tight))
            tables = (Partitions.of(judge.segments, last, most, each) for each in others)
            found += [_with_slack(each, tight, 1).padded(places.num_stages) for each in tables]
    return Candidates.joined(found)


def _with_slack(partitions: Partitions, sizes: Sequence[int], num_limits: int) -> Candidates:
    return with_slack(partitions, [each for each in sizes if np.isfinite(partitions.least_s[each, 0])], num_limits)
