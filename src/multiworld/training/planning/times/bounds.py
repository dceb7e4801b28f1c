"""What a step takes at least: the longest of some paths through its operations, and no simulation."""

from __future__ import annotations

import numpy as np

from ..arrays import Floats, Ints
from .pipelines import Pipelines


def lower_bounds_s(pipelines: Pipelines, counts: Ints) -> Floats:
    """Return a lower bound on what ``iterations_s`` returns for the same arguments, [num_pipelines].

    Each path reaches a stage ``k``, goes on there or makes round trips to the last stage, and returns. With ``N``
    micro-batches, ``W`` of them in flight, and the stage's work ``w`` these are: ``N`` times ``w``; a round trip,
    ``N - W`` forwards and ``N - 1`` backwards; and ``q + 1`` round trips with ``N - 1 - q W`` times ``w``. For
    ``q = 1`` the last is Oobleck's formula (Jang et al. 2023, section 4.1.2), for the largest ``q`` it is what a
    round trip with latencies lets through.
    """
    hops_s = pipelines.transfers_s.copy()
    hops_s[-1] = 0.0
    work_s = pipelines.forward_s + pipelines.backward_s
    trip_s = np.cumsum((work_s + 2 * hops_s)[::-1], axis=0)[::-1]
    before_s = trip_s[0] - trip_s
    in_flight = np.minimum(pipelines.limits, counts)
    longest = np.maximum(
        counts * work_s,
        trip_s + (counts - in_flight) * pipelines.forward_s + (counts - 1) * pipelines.backward_s,
    )
    most = (counts - 1) // in_flight
    for trips in (np.minimum(1, most), most):
        path = (trips + 1) * trip_s + (counts - 1 - trips * in_flight) * work_s
        np.maximum(longest, np.where(trips > 0, path, 0.0), out=longest)
    bounds: Floats = (before_s + longest).max(0)
    if pipelines.is_split:  # the last gradients of weights may be computed while others still return
        arrived_s = np.cumsum(pipelines.forward_s + hops_s, axis=0) - pipelines.forward_s - hops_s
        bounds = np.maximum(bounds, (arrived_s + counts * (work_s + pipelines.weights_s)).max(0))
    return bounds
