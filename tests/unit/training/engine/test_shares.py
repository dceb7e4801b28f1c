"""Which micro-batches each member computes: at first, after a loss, and in the step after it."""

from __future__ import annotations

import pytest

from multiworld.training.engine.shares import Shares
from multiworld.training.recovery.records import Member


def members(*names: str) -> list[Member]:
    """A name as ``a.1`` is of process 1 of replica ``a``."""
    return [
        Member(id=name, rank=rank, host="h", replica=name.split(".")[0] if "." in name else "")
        for rank, name in enumerate(names)
    ]


def test_members_without_the_state_compute_nothing() -> None:
    shares = Shares(6)
    shares.not_ready = frozenset({1})
    shares.begin_step()
    shares.deal(members("a", "b", "c"), {})
    assert shares.by_place == [(0, 1, 2), (), (3, 4, 5)]


def test_after_a_loss_the_others_keep_what_they_have_done_and_share_the_rest() -> None:
    shares = Shares(6)
    shares.begin_step()
    shares.deal(members("a", "b", "c"), {})
    assert shares.num_lost(members("a", "c")) == 2
    shares.deal(members("a", "c"), {0: (0, 1), 1: (4,)})
    assert shares.by_place == [(0, 1, 2), (4, 3, 5)]
    assert shares.of_next_step(1, 2) == (3, 4, 5)


@pytest.mark.parametrize("batch", ["drop", "shrink"])
def test_the_share_of_a_lost_member_is_given_up_if_the_batch_is_not_constant(batch: str) -> None:
    shares = Shares(6, batch=batch, full_size=3)
    shares.begin_step()
    assert shares.deal(members("a", "b", "c"), {})
    assert not shares.deal(members("a", "c"), {0: (0, 1)})
    assert shares.by_place == [(0, 1), (4, 5)]
    assert shares.num_lost(members("a", "c")) == 0


@pytest.mark.parametrize(("batch", "expected"), [("drop", [(0, 1, 2), (3, 4, 5)]), ("shrink", [(0, 1), (3, 4)])])
def test_in_the_step_after_a_loss_only_a_batch_that_shrinks_is_smaller(
    batch: str, expected: list[tuple[int, ...]]
) -> None:
    shares = Shares(6, batch=batch, full_size=3)
    shares.begin_step()
    shares.deal(members("a", "b", "c"), {})
    shares.begin_step()
    shares.deal(members("a", "c"), {})
    assert shares.by_place == expected


def test_a_member_that_was_behind_keeps_to_what_the_others_had_dealt() -> None:
    """They began the next step with three members, and drop the share of the one that they lost there."""
    shares = Shares(6, batch="drop")
    shares.begin_step()
    shares.deal(members("a", "b", "c"), {})
    shares.others_began(members("a", "b", "c"), frozenset())
    shares.begin_step()
    shares.deal(members("a", "c"), {})
    assert shares.by_place == [(0, 1), (4, 5)]


def test_the_processes_of_a_replica_have_one_share() -> None:
    shares = Shares(4, replica_size=2)
    shares.not_ready = frozenset({2, 3})
    shares.begin_step()
    shares.deal(members("a.0", "a.1", "b.0", "b.1"), {})
    assert shares.by_place == [(0, 1, 2, 3), (0, 1, 2, 3), (), ()]
    assert shares.by_replica == [(0, 1, 2, 3), ()]
    shares.not_ready = frozenset()
    assert shares.of_next_step(3, 4) == (2, 3)
    shares.begin_step()
    shares.deal(members("a.0", "a.1", "b.0", "b.1"), {})
    assert shares.num_lost(members("b.0", "b.1")) == 2
