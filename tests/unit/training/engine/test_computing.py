"""What a member's micro-batches of a step leave behind: sums, notes on them, and what is not finished."""

from __future__ import annotations

import pytest
import torch

from multiworld.errors import PeerDiedError
from multiworld.training.engine.health import NoHealth

from .fake_member import BROKEN, FakeMember


class EachTwice(NoHealth):
    """Has the first micro-batch of each step computed twice."""

    def __init__(self) -> None:
        self.num_compared = 0

    def repeats(self, step: int) -> bool:
        return True

    def compare(self) -> None:
        self.num_compared += 1


def test_the_share_is_computed_and_reduced() -> None:
    member = FakeMember()
    assert member.compute(0, 2) == [1.0, 3.0]
    assert not member.computing.progress.is_complete
    member.computing.reduce()
    assert member.computing.progress.is_complete
    assert member.computing.progress.done == [0, 2]
    assert [each.tolist() for each in member.computing.reduced] == [[4.0]]


def test_only_what_is_not_finished_is_computed() -> None:
    member = FakeMember()
    member.compute(0, 2)
    assert member.compute(0, 2, 3) == [4.0]
    assert member.compute(0, 2, 3) == []


def test_a_loss_is_noticed_before_the_next_micro_batch_and_finished_ones_stay() -> None:
    member = FakeMember()
    batches = member.computing.compute(0, (0, 1))
    member.backward(next(batches))
    member.team.error = BROKEN
    with pytest.raises(PeerDiedError):
        next(batches)
    assert (member.computing.progress.done, member.loader.num_open) == ([0], 0)


def test_processes_of_a_replica_compute_to_the_end_and_notice_a_loss_then() -> None:
    member = FakeMember()
    member.team.replica.size, member.team.error = 2, BROKEN
    assert member.compute(0, 1) == [1.0, 2.0]
    with pytest.raises(PeerDiedError):
        member.computing.reduce()


def test_a_step_that_needs_nobody_goes_on_after_a_loss() -> None:
    member = FakeMember(alone=True)
    member.team.error = BROKEN
    assert member.compute(0, 1) == [1.0, 2.0]
    member.computing.reduce()


def test_gradients_are_sent_in_the_last_backward_once_their_order_is_known() -> None:
    member = FakeMember()
    member.compute(0, 1)
    assert member.reduction.launched == []
    member.computing.begin_step(None)
    member.compute(0, 1)
    assert member.reduction.launched == [0]


def test_a_world_that_breaks_in_backward_raises_after_it() -> None:
    member = FakeMember()
    member.compute(0)
    member.computing.begin_step(None)
    member.reduction.error = BROKEN
    assert member.compute(0, 1) == [1.0, 2.0]
    with pytest.raises(PeerDiedError):
        member.computing.reduce()


def test_nothing_is_sent_early_again_after_a_gradient_came_late() -> None:
    member = FakeMember()
    member.compute(0)
    member.computing.begin_step(None)
    for batch in member.computing.compute(0, (0,)):
        member.backward(batch)
        member.backward(batch)
    assert member.computing.gradients.late == {0}
    member.computing.reduce_again([0])
    assert (member.computing.gradients.late, member.reduction.launched) == (set(), [0, 0])
    assert [each.tolist() for each in member.computing.reduced] == [[2.0]]
    member.computing.begin_step(None)
    member.compute(0)
    assert member.reduction.launched == []


def test_a_micro_batch_that_is_compared_counts_once() -> None:
    member = FakeMember()
    health = member.services.health = EachTwice()
    assert member.compute(0, 1) == [1.0, 1.0, 2.0]
    member.computing.reduce()
    assert (member.computing.progress.done, health.num_compared) == ([0, 1], 1)
    assert [each.tolist() for each in member.computing.reduced] == [[3.0]]


def test_a_micro_batch_draws_the_same_random_numbers_wherever_it_is_computed() -> None:
    first, second = FakeMember(seed=5), FakeMember(seed=5)
    drawn = [torch.rand(1).item() for _ in first.computing.compute(7, (1, 3))]
    assert [torch.rand(1).item() for _ in second.computing.compute(7, (3, 1))] == drawn[::-1]
    assert drawn[0] != drawn[1]


def test_what_is_given_up_is_computed_again() -> None:
    member = FakeMember()
    member.compute(0, 1)
    member.computing.give_up()
    assert member.compute(0, 1) == [1.0, 2.0]


def test_parameters_without_a_gradient_are_named() -> None:
    member = FakeMember()
    assert member.computing.unused == {0}
    member.compute(0)
    assert member.computing.unused == set()
