"""In which order the ranks of a pipeline compute."""

from __future__ import annotations

import pytest

from multiworld.training.planning.operations import Kind, Operation
from multiworld.training.planning.orders import in_flight, orders
from multiworld.training.planning.template import Schedule


def text(order: tuple[Operation, ...]) -> str:
    return " ".join(f"{each.kind.name[0]}{each.micro_batch}" for each in order)


def test_1f1b_warms_up_with_as_many_forwards_as_there_are_stages_from_here() -> None:
    first, middle, last = orders(Schedule.ONE_F_ONE_B, 3, 4)
    assert text(first) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(middle) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert text(last) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_a_limit_holds_for_the_stages_behind_as_well() -> None:
    assert in_flight(Schedule.ONE_F_ONE_B, 4, 8, (4, 2, 2, 1)) == (4, 2, 2, 1)
    assert in_flight(Schedule.ONE_F_ONE_B, 4, 8, (4, 1, 3, 3)) == (4, 1, 1, 1)
    assert text(orders(Schedule.ONE_F_ONE_B, 2, 3, max_in_flight=(1, 1))[0]) == "F0 B0 F1 B1 F2 B2"


def test_zero_bubble_puts_off_weights_and_computes_them_where_it_would_wait() -> None:
    first, last = orders(Schedule.ZERO_BUBBLE, 2, 3)
    assert text(first) == "F0 F1 B0 W0 F2 B1 W1 B2 W2"
    assert text(last) == "F0 B0 F1 B1 W0 F2 B2 W1 W2"


def test_interleaved_ranks_go_round_their_stages() -> None:
    first, _ = orders(Schedule.INTERLEAVED, 4, 2, num_ranks=2)
    assert [(each.kind, each.stage, each.micro_batch) for each in first[:5]] == [
        (Kind.FORWARD, 0, 0),
        (Kind.FORWARD, 0, 1),
        (Kind.FORWARD, 2, 0),
        (Kind.FORWARD, 2, 1),
        (Kind.BACKWARD, 2, 0),
    ]


def test_stages_that_do_not_divide_among_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="5 stages cannot be interleaved over 2 ranks: expected a multiple"):
        orders(Schedule.INTERLEAVED, 5, 2, num_ranks=2)


@pytest.mark.parametrize("limits", [(1, 1), (2, 1, 0)])
def test_limits_for_other_stages_are_refused(limits: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected 3 counts of at least 1"):
        orders(Schedule.ONE_F_ONE_B, 3, 2, max_in_flight=limits)
