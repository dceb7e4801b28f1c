"""Whatever the order of events, an open request has exactly one place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.demo.ledger import ReplicaLedger


@given(st.lists(st.tuples(st.sampled_from(["assign", "answer", "up", "down"]), st.integers(0, 7)), max_size=60))
def test_every_open_request_is_held_by_one_replica_that_is_up_or_waits(steps: list[tuple[str, int]]) -> None:
    replicas = ("b1", "b2")
    ledger = ReplicaLedger(replicas)
    up: set[str] = set()
    is_open: set[int] = set()
    for action, number in steps:
        replica = replicas[number % 2]
        if action == "assign":
            ledger.assign(number)
            is_open.add(number)
        elif action == "answer":
            ledger.answered([number])
            is_open.discard(number)
        elif action == "up":
            ledger.up(replica)
            up.add(replica)
        else:
            ledger.down(replica)
            up.discard(replica)
        assert {request for request in range(8) if ledger.is_open(request)} == is_open
        for request in is_open:
            holder = ledger.holder(request)
            assert holder in up if up else holder is None
