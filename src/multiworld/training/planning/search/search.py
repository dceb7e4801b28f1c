"""The fastest partition for each number of stages: candidates, pruned by bounds, decided by exact simulation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from ..arrays import Bools, Ints
from .candidates import Candidates, Judge, Way
from .partitions import Partitions

FEW, FEW_REFINED = 400, 2500  # partitions: so many are tried one and all
SLACK = 0.06  # how far above the least the slowest stage may be
AT_ONCE = 8  # cuts in a row that may move together
FIRST = 2  # candidates of a size that are simulated before their best time prunes the others


class Search:
    """Keeps the best of each number of stages. ``times_s[size]`` is infinite where none was found."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.found: dict[int, Candidates] = {}
        self.times_s = np.full(judge.places.num_stages + 1, np.inf)

    def consider(self, candidates: Candidates) -> None:
        """Simulate those that may be better than what was found, the most promising ones first."""
        if not len(candidates.cuts):
            return
        bounds_s = self._judge.bounds_s(candidates)
        order = np.argsort(bounds_s, kind="stable")
        candidates, bounds_s = candidates.take(order), bounds_s[order]
        sizes = candidates.num_stages
        is_first = _rank_within(sizes) < FIRST
        for part in (is_first, ~is_first):
            self._simulate(candidates, sizes, part & (bounds_s < self.times_s[sizes] * (1 - 1e-9)))

    def improve(self, ways: Sequence[Way], most_rounds: int = 20) -> None:
        """Move cuts by one layer, or keep within memory otherwise, as long as that makes a size faster."""
        changed = list(self.found)
        while changed and most_rounds:
            most_rounds -= 1
            before_s = self.times_s.copy()
            neighbours = Candidates.joined([_neighbours(self.found[size], ways) for size in changed])
            self.consider(neighbours.take(self._judge.fits(neighbours)))
            changed = [size for size in changed if self.times_s[size] < before_s[size]]

    def _simulate(self, candidates: Candidates, sizes: Ints, chosen: Bools) -> None:
        if not chosen.any():
            return
        simulated, sizes = candidates.take(chosen), sizes[chosen]
        times_s = self._judge.simulated_s(simulated)
        for size in sorted(set(sizes.tolist())):
            of_size = np.flatnonzero(sizes == size)
            winner = of_size[times_s[of_size].argmin()]
            if times_s[winner] < self.times_s[size] * (1 - 1e-9):
                self.times_s[size] = times_s[winner]
                self.found[size] = simulated.take(np.array([winner]))


def all_partitions(ways: Sequence[Way], num_stages: int, judge: Judge) -> Candidates:
    """Return every partition into so many stages that fits in one of these ways."""
    num_layers = judge.segments.num_layers
    inner = np.array(list(combinations(range(1, num_layers), num_stages - 1)), np.int64)
    cuts = np.zeros((len(inner), judge.places.num_stages + 1), np.int64)
    cuts[:, -1] = num_layers
    cuts[:, judge.places.num_stages - num_stages + 1 : -1] = inner.reshape(len(inner), num_stages - 1)
    used = [each for each in ways if each.in_flight < num_stages or each.is_free(judge.places.num_stages)]
    every = Candidates.joined([Candidates.of(cuts, each) for each in used])
    return every.take(judge.fits(every))


def is_few(num_stages: int, num_layers: int, num_ways: int, *, refine: bool) -> bool:
    """Return whether all partitions can be tried, in so many ways to keep within memory."""
    count = comb(num_layers - 1, num_stages - 1)
    few = FEW_REFINED if refine else FEW
    return count <= few and count * num_ways * num_stages <= 40 * few


def with_slack(partitions: Partitions, sizes: Sequence[int], num_limits: int) -> Candidates:
    """Return partitions of these sizes whose slowest stage is at most a little slower than it must be."""
    least_s = partitions.least_s[sizes, 0]
    limits_s = least_s[:, None] * (1 + SLACK * np.linspace(0, 1, num_limits))
    return partitions.walk(np.repeat(sizes, num_limits), limits_s.ravel())


def _neighbours(best: Candidates, ways: Sequence[Way]) -> Candidates:
    """Return candidates with some cuts moved by one layer, and those that keep within memory in other ways."""
    (cuts,) = best.cuts
    moved = []
    for first in range(int((cuts == 0).sum()), len(cuts) - 1):
        for end in range(first + 1, min(first + AT_ONCE, len(cuts) - 1) + 1):
            for step in (-1, 1):
                other = cuts.copy()
                other[first:end] += step
                moved.append(other)
    every = np.array(moved, np.int64).reshape(-1, len(cuts))
    way = Way(int(best.in_flight[0]), bool(best.recompute[0]), bool(best.split[0]))
    return Candidates.joined([Candidates.of(every, way), *(Candidates.of(best.cuts, each) for each in ways)])


def _rank_within(sizes: Ints) -> Ints:
    """Return for each element how many equal ones are before it."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    ranks = np.empty(len(sizes), np.int64)
    ranks[order] = np.arange(len(sizes)) - np.repeat(starts, np.diff(starts, append=len(sizes)))
    return ranks
