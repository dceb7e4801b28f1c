"""The order in which one stage computes its forwards and backwards, if its pipeline computes for no other."""

from __future__ import annotations

import functools

from ..planning.operations import Operation
from ..planning.orders import orders
from .assignment import AssignedPipeline


@functools.lru_cache(maxsize=64)
def order_of(pipeline: AssignedPipeline, stage: int, num_micro_batches: int) -> tuple[Operation, ...]:
    """Return what this stage computes in a step of so many micro-batches, which count within the pipeline."""
    if not num_micro_batches:
        return ()
    return orders(
        pipeline.schedule,
        len(pipeline.members),
        num_micro_batches,
        max_in_flight=pipeline.max_in_flight,
    )[stage]
