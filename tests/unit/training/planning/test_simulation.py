"""When operations of a pipeline begin and end."""

from __future__ import annotations

import pytest

from multiworld.training.planning.operations import Kind
from multiworld.training.planning.simulation import iteration_s, timeline
from multiworld.training.planning.template import Schedule


def test_equal_stages_take_as_many_turns_as_micro_batches_and_stages() -> None:
    assert iteration_s([1.0] * 4, [2.0] * 4, 8) == pytest.approx((8 + 4 - 1) * 3)


def test_the_formula_is_low_with_one_slow_stage_and_the_simulation_is_not() -> None:
    assert iteration_s([1, 1, 3, 1], [2, 2, 6, 2], 8) == pytest.approx(3 + 3 + 8 * 9)  # by the formula: 75


def test_a_transfer_delays_what_waits_for_it_and_keeps_no_rank_from_computing() -> None:
    timed = timeline([1, 1], [1, 1], 1, transfers_s=[0.5])
    assert [(each.stage, each.kind, each.begin_s, each.end_s) for each in timed] == [
        (0, Kind.FORWARD, 0, 1),
        (1, Kind.FORWARD, 1.5, 2.5),
        (1, Kind.BACKWARD, 2.5, 3.5),
        (0, Kind.BACKWARD, 4, 5),
    ]


def test_latency_sets_the_period_when_few_are_in_flight() -> None:
    longer = iteration_s([1, 1], [1, 1], 11, transfers_s=[2]) - iteration_s([1, 1], [1, 1], 9, transfers_s=[2])
    assert longer == pytest.approx(4 + 2 * 2)  # the round trip, for two micro-batches in flight


def test_a_split_backward_fills_bubbles_and_needs_no_more_work() -> None:
    plain = iteration_s([1] * 4, [2] * 4, 8)
    split = iteration_s([1] * 4, [2] * 4, 8, schedule=Schedule.ZERO_BUBBLE)
    assert 8 * 3 <= split < plain


def test_an_interleaved_pipeline_fills_sooner() -> None:
    plain = iteration_s([1] * 4, [2] * 4, 8)
    assert iteration_s([0.5] * 8, [1] * 8, 8, schedule=Schedule.INTERLEAVED, num_ranks=4) < plain


def test_values_of_other_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="backward_s has 3 values: expected 2 for 2 stages"):
        timeline([1, 1], [1, 1, 1], 2)
    with pytest.raises(ValueError, match="transfers_s has 2 values: expected 1 for 2 stages"):
        timeline([1, 1], [1, 1], 2, transfers_s=[0.1, 0.1])
