"""ZB-H1: gradients of weights are computed where a rank would otherwise wait (Qi et al. 2023, arXiv 2401.10241)."""

from __future__ import annotations

from collections.abc import Sequence

from ..operations import Kind, Operation


def zero_bubble(limits: Sequence[int], num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
    """Return the order of each stage. ``limits``: how many micro-batches it holds from forward to weight operation.

    Forwards and backwards have the order of 1F1B. Stage ``k`` puts off ``k`` weight operations, as far as its limit
    allows, and computes them at the end, while it waits for backwards of the stages behind.
    """
    num_stages = len(limits)
    return tuple(
        _order(stage, min(num_stages - stage, limit), limit, num_micro_batches) for stage, limit in enumerate(limits)
    )


def _order(stage: int, warm_up: int, limit: int, num_micro_batches: int) -> tuple[Operation, ...]:
    put_off = min(stage, limit - warm_up)
    order = [Operation(Kind.FORWARD, stage, each) for each in range(warm_up)]
    num_weights = 0
    for micro_batch in range(num_micro_batches):
        order.append(Operation(Kind.BACKWARD, stage, micro_batch))
        forward = micro_batch + warm_up
        if forward >= num_micro_batches or micro_batch + 1 - num_weights > put_off:
            order.append(Operation(Kind.WEIGHT, stage, num_weights))
            num_weights += 1
        if forward < num_micro_batches:
            order.append(Operation(Kind.FORWARD, stage, forward))
    order += [Operation(Kind.WEIGHT, stage, each) for each in range(num_weights, num_micro_batches)]
    return tuple(order)
