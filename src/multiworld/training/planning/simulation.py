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
    run = _Run(times, planned, num_micro_batches)
    while run.is_going:
        assert run.advance(), f"{schedule.value} with {num_stages} stages stands still"
    return run.timed


class _Run:
    """Computes operations as soon as their rank is free and their inputs are there."""

    def __init__(self, times: _Times, planned: Sequence[Sequence[Operation]], num_micro_batches: int) -> None:
        self.timed: list[Timed] = []
        self._times, self._planned = times, planned
        self._next = [0] * len(planned)
        self._free_s = [0.0] * len(planned)
        self._num = sum(map(len, planned))
        blank = [None] * num_micro_batches
        self._ends: dict[Kind, list[list[float | None]]] = {
            kind: [list(blank) for _ in range(len(times.transfers_s) + 1)] for kind in Kind
        }

    @property
    def is_going(self) -> bool:
        return len(self.timed) < self._num

    def advance(self) -> bool:
        """Let each rank go on until it has to wait. Return whether one did."""
        before = len(self.timed)
        for rank, order in enumerate(self._planned):
            index, free_s = self._next[rank], self._free_s[rank]
            while index < len(order):
                kind, stage, micro_batch = order[index]
                ready_s = self._ready_s(kind, stage, micro_batch)
                if ready_s is None:
                    break
                begin_s = max(free_s, ready_s)
                free_s = begin_s + self._times.durations_s[kind][stage]
                self._ends[kind][stage][micro_batch] = free_s
                self.timed.append(Timed(rank, stage, kind, micro_batch, begin_s, free_s))
                index += 1
            self._next[rank], self._free_s[rank] = index, free_s
        return len(self.timed) > before

    def _ready_s(self, kind: Kind, stage: int, micro_batch: int) -> float | None:
        """Return when the inputs are there, None if what makes them has not been computed yet."""
        transfer_s = 0.0
        if kind is Kind.WEIGHT:
            end_s = self._ends[Kind.BACKWARD][stage][micro_batch]
        elif kind is Kind.FORWARD:
            if stage == 0:
                return 0.0
            end_s, transfer_s = self._ends[kind][stage - 1][micro_batch], self._times.transfers_s[stage - 1]
        elif stage == len(self._times.transfers_s):
            end_s = self._ends[Kind.FORWARD][stage][micro_batch]
        else:
            end_s, transfer_s = self._ends[kind][stage + 1][micro_batch], self._times.transfers_s[stage]
        return None if end_s is None else end_s + transfer_s


@dataclass(frozen=True)
class _Times:
    """What operations take, and transfers from each stage to the next."""

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
