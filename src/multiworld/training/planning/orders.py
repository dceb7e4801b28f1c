"""In which order each rank of a pipeline computes: what a simulation times, and what a rank then executes.

A *rank* computes one operation at a time. In the interleaved schedule, rank ``r`` of ``p`` has the stages ``r``,
``r + p``, ``r + 2p``, ...; in the others, each rank has one stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from .operations import Kind, Operation
from .schedules.interleaving import interleaved
from .schedules.zero_bubble import zero_bubble
from .template import Schedule


def orders(
    schedule: Schedule,
    num_stages: int,
    num_micro_batches: int,
    *,
    max_in_flight: Sequence[int] | None = None,
    num_ranks: int | None = None,
) -> tuple[tuple[Operation, ...], ...]:
    """Return the operations of each rank, in the order in which it computes them. No such order can deadlock.

    ``max_in_flight``: for each stage, how many micro-batches may be between their forward and their backward, or, with
    a split backward, their weight operation; None: as many as the schedule wants (the interleaved one always takes
    what it wants). ``num_ranks``: of the interleaved schedule; it divides ``num_stages``. Raises ValueError.
    """
    if num_stages < 1 or num_micro_batches < 1:
        raise ValueError(f"{num_stages} stages and {num_micro_batches} micro-batches: expected at least one of each")
    limits = in_flight(schedule, num_stages, num_micro_batches, max_in_flight)
    if schedule is Schedule.INTERLEAVED:
        return interleaved(num_stages, num_ranks or num_stages, num_micro_batches)
    if schedule is Schedule.ZERO_BUBBLE:
        return zero_bubble(limits, num_micro_batches)
    return tuple(one_f_one_b(stage, limits[stage], num_micro_batches) for stage in range(num_stages))


def in_flight(
    schedule: Schedule, num_stages: int, num_micro_batches: int, max_in_flight: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return for each stage how many micro-batches the schedule holds there, at most.

    A stage never holds more than the one before it: it would wait for a forward that this one cannot yet compute.
    """
    if max_in_flight is None:
        split = schedule is Schedule.ZERO_BUBBLE
        max_in_flight = [num_stages if split else num_stages - stage for stage in range(num_stages)]
    if len(max_in_flight) != num_stages or min(max_in_flight) < 1:
        raise ValueError(f"max_in_flight {tuple(max_in_flight)}: expected {num_stages} counts of at least 1")
    return tuple(accumulate((min(each, num_micro_batches) for each in max_in_flight), min))


def one_f_one_b(stage: int, warm_up: int, num_micro_batches: int) -> tuple[Operation, ...]:
    """Return 1F1B's order of one stage: ``warm_up`` forwards, then one backward and one forward in turn."""
    forwards = [Operation(Kind.FORWARD, stage, each) for each in range(num_micro_batches)]
    backwards = [Operation(Kind.BACKWARD, stage, each) for each in range(num_micro_batches)]
    order = forwards[:warm_up]
    for backward, forward in zip(backwards, forwards[warm_up:], strict=False):
        order += (backward, forward)
    return (*order, *backwards[num_micro_batches - warm_up :])
