"""Reduce what was seen of requests to figures. Pure, and without any package: the peer's interpreter runs it too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

__all__ = ["least_throughput", "longest_gap_s", "oracle_latencies", "quantile"]


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0 to 1) of all do not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def longest_gap_s(moments: Iterable[float], began: float, ended: float) -> float:
    """Return the longest time without any of the moments, from ``began`` to ``ended``."""
    inside = [began, *sorted(each for each in moments if began < each < ended), ended]
    return max(after - before for before, after in itertools.pairwise(inside))


def least_throughput(moments: Iterable[float], began: float, ended: float, window_s: float) -> float:
    """Return how many of the moments there are per second in the emptiest of the whole windows; NaN without any."""
    counts = [0] * int((ended - began) / window_s + 1e-9)
    for each in moments:
        index = int((each - began) / window_s)
        if each >= began and index < len(counts):
            counts[index] += 1
    return min(counts) / window_s if counts else math.nan


def oracle_latencies(arrivals: Iterable[float], service_s: Sequence[float]) -> list[float]:
    """Return how long requests take if each goes where it is finished first, by a router that knows everything.

    ``service_s``: of each replica, which does one request after the other.
    """
    free_at = [0.0] * len(service_s)
    taken: list[float] = []
    for at in arrivals:
        ends = [max(free, at) + service for free, service in zip(free_at, service_s, strict=True)]
        best = min(range(len(ends)), key=ends.__getitem__)
        free_at[best] = ends[best]
        taken.append(ends[best] - at)
    return taken
