"""When a snapshot is due, and when a node is given up."""

from __future__ import annotations

import pytest

from multiworld.remote.recovery.schedule import MAX_LOSSES, Losses, Schedule


def test_the_first_snapshot_is_due_at_once_and_the_next_after_its_time_if_something_was_issued() -> None:
    schedule = Schedule(30.0)
    assert (schedule.is_due(num_records=0, log_bytes=0, now=5.0), schedule.wait_s(now=5.0)) == (True, 0.0)
    schedule.began(now=5.0)
    assert not schedule.is_due(num_records=9, log_bytes=9, now=34.9)
    assert schedule.wait_s(now=25.0) == 10.0
    assert not schedule.is_due(num_records=0, log_bytes=0, now=40.0)
    assert schedule.wait_s(now=40.0) == 3.0
    assert schedule.is_due(num_records=1, log_bytes=9, now=35.0)


def test_a_log_that_is_full_does_not_wait() -> None:
    schedule = Schedule(30.0, max_log_bytes=100)
    schedule.began(now=0.0)
    assert not schedule.is_due(num_records=1, log_bytes=100, now=1.0)
    assert schedule.is_due(num_records=1, log_bytes=101, now=1.0)
    assert schedule.is_due(num_records=1, log_bytes=9, now=1.0, has_gap=True)


@pytest.mark.parametrize("every_s", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none_is_refused(every_s: float) -> None:
    with pytest.raises(ValueError, match="expected seconds"):
        Schedule(every_s)


def test_a_node_that_is_lost_at_the_same_record_again_and_again_is_given_up() -> None:
    losses = Losses()
    assert all(losses.may_return(position) for position in range(100))
    assert [losses.may_return(99) for _ in range(MAX_LOSSES)] == [True] * (MAX_LOSSES - 1) + [False]
    assert losses.may_return(100)
