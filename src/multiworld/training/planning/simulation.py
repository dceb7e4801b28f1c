"""When each operation of a pipeline begins and ends, if each stage computes in the order of its schedule: exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .operations import Kind, Operation
from .orders import orders
from .template import Schedule


class Timed(NamedTuple):
    """An operation with its times, in seconds since the step began."""

    rank: int
    stage: int
    kind: Kind
    micro_batch: int
    begin_s: float
    end_s: float


def iteration_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    num_micro_batches: int,
    *,
    transfers_s: Sequence[float] = (),
    max_in_flight: Sequence[int] | None = None,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
    weight_backward_s: Sequence[float] | None = None,
    num_ranks: int | None = None,
) -> float:
    """Return what a step takes from the first forward to the last backward, as ``timeline`` has it."""
    timed = timeline(
        forward_s,
        backward_s,
        num_micro_batches,
        transfers_s=transfers_s,
        max_in_flight=max_in_flight,
        schedule=schedule,
        weight_backward_s=weight_backward_s,
        num_ranks=num_ranks,
    )
    return max(each.end_s for each in timed)


def timeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    num_micro_batches: int,
    *,
    transfers_s: Sequence[float] = (),
    max_in_flight: Sequence[int] | None = None,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
    weight_backward_s: Sequence[float] | None = None,
    num_ranks: int | None = None,
) -> list[Timed]:
    """Return all operations of a step with their times. ``forward_s``, ``backward_s``: of one micro-batch, by stage.

    ``transfers_s``: between each stage and the next, one way; empty: none. A transfer keeps no rank from computing.
    ``weight_backward_s``: the part of ``backward_s`` that a split backward puts off (half of it, if None).
    ``max_in_flight``, ``num_ranks``: as for ``orders``. Raises ValueError for sequences of other lengths.
    """
    num_stages = len(forward_s)
    times = _Times.of(forward_s, backward_s, transfers_s, weight_backward_s, schedule)
    planned = orders(schedule, num_stages, num_micro_batches, max_in_flight=max_in_flight, num_ranks=num_ranks)
    ends: dict[Operation, float] = {}
    free_s, next_of = [0.0] * len(planned), [0] * len(planned)
    timed: list[Timed] = []
    waiting = list(range(len(planned)))
    while waiting:
        before = len(timed)
        for rank in waiting:
            order = planned[rank]
            while next_of[rank] < len(order):
                operation = order[next_of[rank]]
                ready_s = times.ready_s(operation, ends)
                if ready_s is None:
                    break
                begin_s = max(free_s[rank], ready_s)
                ends[operation] = free_s[rank] = begin_s + times.duration_s(operation)
                timed.append(Timed(rank, operation.stage, operation.kind, operation.micro_batch, begin_s, free_s[rank]))
                next_of[rank] += 1
        assert len(timed) > before, f"{schedule.value} with {num_stages} stages stands still"
        waiting = [rank for rank in waiting if next_of[rank] < len(planned[rank])]
    return timed


@dataclass(frozen=True)
class _Times:
    """What operations take and wait for."""

    durations_s: dict[Kind, Sequence[float]]
    transfers_s: Sequence[float]

    @classmethod
    def of(
        cls,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        transfers_s: Sequence[float],
        weight_backward_s: Sequence[float] | None,
        schedule: Schedule,
    ) -> _Times:
        num_stages = len(forward_s)
        transfers_s = transfers_s if len(transfers_s) else [0.0] * (num_stages - 1)
        if schedule is not Schedule.ZERO_BUBBLE:
            weight_backward_s = [0.0] * num_stages
        elif weight_backward_s is None:
            weight_backward_s = [each / 2 for each in backward_s]
        for name, values, expected in (
            ("backward_s", backward_s, num_stages),
            ("transfers_s", transfers_s, num_stages - 1),
            ("weight_backward_s", weight_backward_s, num_stages),
        ):
            if len(values) != expected:
                raise ValueError(f"{name} has {len(values)} values: expected {expected} for {num_stages} stages")
        backward_s = [whole - weight for whole, weight in zip(backward_s, weight_backward_s, strict=True)]
        return cls({Kind.FORWARD: forward_s, Kind.BACKWARD: backward_s, Kind.WEIGHT: weight_backward_s}, transfers_s)

    def duration_s(self, operation: Operation) -> float:
        return self.durations_s[operation.kind][operation.stage]

    def ready_s(self, operation: Operation, ends: dict[Operation, float]) -> float | None:
        """Return when the inputs are there, None if what makes them has not been computed yet."""
        kind, stage, micro_batch = operation
        last = len(self.transfers_s)
        if kind is Kind.FORWARD and stage == 0:
            return 0.0
        if kind is Kind.FORWARD:
            source, transfer_s = Operation(kind, stage - 1, micro_batch), self.transfers_s[stage - 1]
        elif kind is Kind.BACKWARD and stage == last:
            source, transfer_s = Operation(Kind.FORWARD, stage, micro_batch), 0.0
        elif kind is Kind.BACKWARD:
            source, transfer_s = Operation(kind, stage + 1, micro_batch), self.transfers_s[stage]
        else:
            source, transfer_s = Operation(Kind.BACKWARD, stage, micro_batch), 0.0
        return ends[source] + transfer_s if source in ends else None
