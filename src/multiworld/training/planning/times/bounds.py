"""What a step of 1F1B takes at least: the longest of some paths through its operations, and no simulation."""

from __future__ import annotations

import numpy as np

from ..arrays import Floats, Ints


def lower_bounds_s(forward_s: Floats, backward_s: Floats, transfers_s: Floats, limits: Ints, counts: Ints) -> Floats:
    """Return a lower bound on what ``rounds.iterations_s`` returns for the same arguments, [num_pipelines].

    Each path reaches a stage ``k``, goes on there or makes round trips to the last stage, and returns. With ``N``
    micro-batches, ``W`` of them in flight, and the stage's work ``w`` these are: ``N`` times ``w``; a round trip,
    ``N - W`` forwards and ``N - 1`` backwards; and ``q + 1`` round trips with ``N - 1 - q W`` times ``w``. For
    ``q = 1`` the last is Oobleck's formula (Jang et al. 2023, section 4.1.2), for the largest ``q`` it is what a
    round trip with latencies lets through.
    """
    hops_s = transfers_s.copy()
    hops_s[-1] = 0.0
    work_s = forward_s + backward_s
    trip_s = np.cumsum((work_s + 2 * hops_s)[::-1], axis=0)[::-1]
    before_s = trip_s[0] - trip_s
    in_flight = np.minimum(limits, counts)
    longest = np.maximum(
        counts * work_s,
        trip_s + (counts - in_flight) * forward_s + (counts - 1) * backward_s,
    )
    most = (counts - 1) // in_flight
    for trips in (np.minimum(1, most), most):
        path = (trips + 1) * trip_s + (counts - 1 - trips * in_flight) * work_s
        np.maximum(longest, np.where(trips > 0, path, 0.0), out=longest)
    bounds: Floats = (before_s + longest).max(0)
    return bounds
