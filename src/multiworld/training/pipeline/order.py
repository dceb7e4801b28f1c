"""The order in which one stage computes its forwards and backwards."""

from __future__ import annotations

import functools

from ..planning.operations import Operation
from ..planning.orders import orders
from .assignment import AssignedPipeline


@functools.lru_cache(maxsize=16)
def order_of(pipeline: AssignedPipeline, stage: int) -> tuple[Operation, ...]:
    """Return what this stage computes in a step. ``micro_batch`` counts within the pipeline."""
    return orders(
        pipeline.schedule,
        len(pipeline.members),
        pipeline.num_micro_batches,
        max_in_flight=pipeline.max_in_flight,
    )[stage]
