"""Requests are numbered, bounded, replayed and answered once."""

from __future__ import annotations

import pytest

from multiworld.demo.ledger import Assignment, ReplicaLedger, RequestLedger


def test_window_bounds_the_open_requests() -> None:
    ledger = RequestLedger(window=2, deadline_s=1)
    assert [ledger.open(now=0), ledger.open(now=0)] == [0, 1]
    assert not ledger.has_room
    with pytest.raises(ValueError, match="2 of 2"):
        ledger.open(now=0)
    assert ledger.answer(0)
    assert ledger.open(now=0) == 2


def test_second_answer_is_discarded_and_counted() -> None:
    ledger = RequestLedger(window=2, deadline_s=1)
    request = ledger.open(now=0)
    assert ledger.answer(request)
    assert not ledger.answer(request)
    assert (ledger.num_sent, ledger.num_answered, ledger.num_discarded) == (1, 1, 1)


def test_answer_to_a_request_that_was_never_sent_is_an_error() -> None:
    with pytest.raises(ValueError, match="never sent"):
        RequestLedger(window=1, deadline_s=1).answer(0)


def test_overdue_requests_are_replayed_once_per_deadline() -> None:
    ledger = RequestLedger(window=3, deadline_s=1)
    early, late = ledger.open(now=0), ledger.open(now=0.5)
    assert ledger.next_deadline() == 1
    assert ledger.take_overdue(now=1.2) == [early]
    assert ledger.take_overdue(now=1.2) == []
    assert ledger.next_deadline() == 1.5
    assert ledger.take_overdue(now=2.2) == [late, early]
    ledger.answer(early)
    assert ledger.take_overdue(now=9) == [late]
    assert ledger.num_replayed == 4


def test_nothing_is_due_without_open_requests() -> None:
    assert RequestLedger(window=1, deadline_s=1).next_deadline() is None


@pytest.mark.parametrize(("window", "deadline_s"), [(0, 1.0), (1, 0.0), (1, -1.0)])
def test_bad_limits_are_refused(window: int, deadline_s: float) -> None:
    with pytest.raises(ValueError):
        RequestLedger(window=window, deadline_s=deadline_s)


def both_up() -> ReplicaLedger:
    ledger = ReplicaLedger(["b1", "b2"])
    assert ledger.up("b1") == ledger.up("b2") == []
    return ledger


def test_requests_go_to_the_replica_that_holds_fewest() -> None:
    ledger = both_up()
    assert [ledger.assign(request) for request in range(3)] == [
        Assignment(0, "b1"),
        Assignment(1, "b2"),
        Assignment(2, "b1"),
    ]
    ledger.answered([0, 2])
    assert ledger.assign(3) == Assignment(3, "b1")


def test_requests_of_a_lost_replica_are_replayed_on_the_other_in_order() -> None:
    ledger = both_up()
    for request in range(6):
        ledger.assign(request)
    ledger.answered([2])
    assert ledger.down("b1") == [Assignment(0, "b2"), Assignment(4, "b2")]
    assert ledger.num_replayed == 2
    assert ledger.assign(6) == Assignment(6, "b2")


def test_requests_wait_while_no_replica_is_up() -> None:
    ledger = ReplicaLedger(["b1", "b2"])
    assert ledger.assign(0) is None
    assert ledger.is_open(0)
    assert ledger.up("b2") == [Assignment(0, "b2")]
    assert ledger.down("b2") == []
    assert ledger.is_open(0)
    assert ledger.up("b1") == [Assignment(0, "b1")]


def test_answered_requests_are_not_replayed() -> None:
    ledger = both_up()
    ledger.assign(0)
    ledger.answered([0, 99])
    assert not ledger.is_open(0)
    assert ledger.down("b1") == []


def test_a_request_that_the_front_replays_moves_to_the_other_replica() -> None:
    ledger = both_up()
    assert ledger.assign(0) == Assignment(0, "b1")
    assert ledger.assign(0) == Assignment(0, "b2")
    assert ledger.num_replayed == 1


def test_a_request_that_the_front_replays_stays_when_there_is_no_other_replica() -> None:
    ledger = ReplicaLedger(["b1", "b2"])
    ledger.up("b1")
    assert ledger.assign(0) == ledger.assign(0) == Assignment(0, "b1")


def test_unknown_or_repeated_replicas_are_refused() -> None:
    with pytest.raises(ValueError, match="distinct"):
        ReplicaLedger(["b1", "b1"])
    with pytest.raises(ValueError, match="unknown replica"):
        both_up().down("b3")
