"""Orders and reports look on the wire as they did in the release before, and what cannot be read is refused."""

from __future__ import annotations

from typing import Any

import pytest

from multiworld.elastic.job.actions import (
    ORDERS,
    REPORTS,
    Die,
    Exited,
    Interrupted,
    OpenMaster,
    Order,
    Reassign,
    Reset,
    Start,
    Stop,
)
from multiworld.elastic.job.assignment import Assignment
from multiworld.errors import MessageError

PLACE: dict[str, Any] = {
    "generation": 3,
    "restarts": 1,
    "rank": 5,
    "local_rank": 1,
    "node_rank": 2,
    "role_rank": 5,
    "world_size": 8,
    "local_world_size": 2,
    "num_nodes": 4,
    "role_world_size": 8,
    "master_addr": "10.0.0.1",
    "master_port": 4000,
}


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({"say": "start", "worker": "w", "assignment": PLACE}, Start(worker="w", assignment=Assignment(**PLACE))),
        ({"say": "reassign", "worker": "w", "assignment": PLACE}, Reassign(worker="w", assignment=Assignment(**PLACE))),
        ({"say": "stop", "workers": ["w"], "signum": 15, "grace_s": 30}, Stop(workers=("w",), signum=15, grace_s=30.0)),
        ({"say": "open master", "generation": 4}, OpenMaster(generation=4)),
        ({"say": "reset"}, Reset()),
        ({"say": "die"}, Die()),
    ],
)
def test_orders_of_the_release_before_are_read_and_it_finds_its_fields_in_ours(
    fields: dict[str, Any], order: Order
) -> None:
    assert ORDERS.from_json(fields) == order
    assert fields.items() <= ORDERS.to_json(order).items()


def test_reports_of_the_release_before_are_read() -> None:
    assert REPORTS.from_json({"say": "interrupted", "signum": 2}) == Interrupted(signum=2)
    failure: dict[str, Any] = {"text": "a", "cause": "signal", "at_us": 5, "last_lines": ["x"]}
    fields = {"say": "exited", "worker": "w", "returncode": -9, "failure": failure, "ordered": False, "clock_us": 7}
    read = REPORTS.from_json(fields)
    assert read == Exited(worker="w", returncode=-9, failure=failure, ordered=False, clock_us=7)
    assert REPORTS.to_json(read) == fields


def test_what_cannot_be_read_is_refused_with_its_field() -> None:
    with pytest.raises(MessageError) as refused:
        ORDERS.from_json({"say": "start", "worker": "w", "assignment": {**PLACE, "rank": "5"}})
    assert (refused.value.kind, refused.value.field) == ("start", "assignment.rank")
    with pytest.raises(MessageError):
        REPORTS.from_json({"say": "start", "worker": "w", "assignment": PLACE})
