"""What agents say looks on the wire as it did in the release before, and what cannot be read is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from multiworld.elastic.job.actions import (
    Die,
    Exited,
    Interrupted,
    Master,
    OpenMaster,
    Order,
    Outcome,
    Reassign,
    Reset,
    Start,
    Stop,
    WorkerReport,
)
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.failure import FailureCause, WorkerFailure
from multiworld.elastic.job.history import Event, History
from multiworld.elastic.job.job import Job
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.job.roster import Roster, RosterChange, RosterEntry
from multiworld.elastic.leadership.coordinator import Coordinator
from multiworld.elastic.leadership.event_log import EventLog
from multiworld.elastic.leadership.messages import (
    AGENT_MESSAGES,
    AgentMessage,
    Answered,
    Asked,
    Attach,
    Ended,
    EventsTold,
    EventsWanted,
    Redirect,
    Refuse,
    RosterChanged,
    RosterTold,
    Summon,
    Welcome,
)
from multiworld.elastic.rendezvous.base import Address
from multiworld.errors import MessageError
from multiworld.wire.progress.thread import ProgressThread

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


FAILED: dict[str, Any] = {
    "rank": 1,
    "local_rank": 0,
    "node_rank": 1,
    "role": "default",
    "hostname": "h",
    "pid": 7,
    "generation": 2,
    "returncode": -9,
    "at_us": 5,
    "cause": "signal",
    "message": "",
    "traceback": None,
    "error_file": None,
    "error_data": None,
    "last_lines": [],
    "caused_by_rank": None,
    "caused_by_world": None,
    "text": "killed by SIGKILL",
}
FAILURE = WorkerFailure(
    rank=1,
    local_rank=0,
    node_rank=1,
    role="default",
    hostname="h",
    pid=7,
    generation=2,
    returncode=-9,
    at_us=5,
    cause=FailureCause.SIGNAL,
)


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
    assert AGENT_MESSAGES.from_json(fields) == order
    assert fields.items() <= AGENT_MESSAGES.to_json(order).items()


def test_reports_of_the_release_before_are_read() -> None:
    assert AGENT_MESSAGES.from_json({"say": "interrupted", "signum": 2}) == Interrupted(signum=2)
    failure: dict[str, Any] = {**FAILED, "last_lines": ["x"]}
    others = {"say": "exited", "worker": "w", "returncode": -9, "ordered": False, "clock_us": 7}
    read = AGENT_MESSAGES.from_json({**others, "failure": failure})
    assert read == Exited(
        worker="w", returncode=-9, failure=replace(FAILURE, last_lines=("x",)), ordered=False, clock_us=7
    )
    said = AGENT_MESSAGES.to_json(read)
    assert failure.items() <= said["failure"].items()
    assert others.items() <= said.items()


def test_what_cannot_be_read_is_refused_with_its_field() -> None:
    with pytest.raises(MessageError) as refused:
        AGENT_MESSAGES.from_json({"say": "start", "worker": "w", "assignment": {**PLACE, "rank": "5"}})
    assert (refused.value.kind, refused.value.field) == ("start", "assignment.rank")


AGENT = {"id": "a", "host": "h", "port": 1, "hostname": "n", "pid": 2, "num_workers": 1, "role": "default"}
ROSTER = {
    "term": 1,
    "coordinator": "a",
    "generation": 2,
    "store": "s",
    "members": [{"id": "a", "host": "h", "port": 1}],
    "active": ["a"],
    "wanted_nodes": None,
    "draining": [],
    "signum": None,
    "given_up": "",
    "known": [{**AGENT, "node_rank": None, "devices": "", "device_indices": [], "host_id": ""}],
    "finished": [],
    "uses_multiworld": False,
    "num_events": 3,
}
INFO = AgentInfo(id="a", host="h", port=1, hostname="n", pid=2, num_workers=1, role="default")
MEMBER = RosterEntry(id="a", host="h", port=1)
THERE = Roster(
    term=1, coordinator="a", generation=2, store="s", members=(MEMBER,), active=("a",), known=(INFO,), num_events=3
)
TOLD = {"number": 1, "at": 2.5, "kind": "restart", "text": "t", "generation": 1, "term": 1, "worker": "w"}
EVENT = Event(number=1, at=2.5, kind="restart", text="t", generation=1, term=1, fields={"worker": "w"})
WORKER = {
    "worker": "w",
    "local_rank": 1,
    "assignment": PLACE,
    "succeeded": False,
    "uses_multiworld": True,
    "worlds": ["x"],
    "restart_ages_s": [1.5],
    "stopping": False,
    "ended": False,
}
REPORT = WorkerReport(
    worker="w",
    local_rank=1,
    assignment=Assignment(**PLACE),
    succeeded=False,
    uses_multiworld=True,
    worlds=("x",),
    restart_ages_s=(1.5,),
)
OUTCOME = {"status": 1, "text": "t", "failures": [FAILED], "signum": None}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {
                "say": "attach",
                "agent": AGENT,
                "digest": {"--nnodes": "1:2"},
                "workers": [WORKER],
                "master": [3, "h", 9],
            },
            Attach(agent=INFO, digest={"--nnodes": "1:2"}, workers=(REPORT,), master=Master(3, "h", 9)),
        ),
        (
            {"say": "attach", "agent": AGENT, "doors": [["h", 5]], "segments": [[1, 1, 4]], "master": None},
            Attach(agent=INFO, doors=(Address("h", 5),), segments=((1, 1, 4),)),
        ),
        (
            {"say": "welcome", "peer": "{}", "heartbeat_s": 0.5, "roster": ROSTER},
            Welcome(peer="{}", heartbeat_s=0.5, roster=THERE),
        ),
        ({"say": "roster", "roster": ROSTER}, RosterTold(roster=THERE)),
        ({"say": "redirect", "host": "h", "port": 3}, Redirect(host="h", port=3)),
        ({"say": "refuse", "reason": "no"}, Refuse(reason="no")),
        (
            {"say": "summon", "host": "h", "port": 3, "id": "a", "rank": [1, 2]},
            Summon(host="h", port=3, id="a", rank=(1, 2)),
        ),
        ({"say": "end", "outcome": OUTCOME}, Ended(outcome=Outcome(status=1, text="t", failures=(FAILURE,)))),
        ({"say": "events", "events": [TOLD]}, EventsTold(events=(EVENT,))),
        ({"say": "events", "events": [], "segments": [[1, 1, 2]]}, EventsTold(events=(), segments=((1, 1, 2),))),
        ({"say": "events", "events": [], "answers": 4}, EventsTold(events=(), answers=4)),
        ({"say": "events wanted", "first": 1, "last": 2}, EventsWanted(first=1, last=2)),
        ({"say": "asked", "number": 1, "question": {"ask": "status"}}, Asked(number=1, question={"ask": "status"})),
        ({"say": "answered", "number": 1, "answer": {"text": "x"}}, Answered(number=1, answer={"text": "x"})),
    ],
)
def test_agents_of_the_release_before_are_understood_and_find_their_fields_in_what_is_said(
    fields: dict[str, Any], message: AgentMessage
) -> None:
    assert AGENT_MESSAGES.from_json(fields) == message
    said = json.loads(AGENT_MESSAGES.encode(message))
    if "agent" in fields:
        assert fields.pop("agent").items() <= said["agent"].items()
    assert fields.items() <= said.items()


@pytest.mark.parametrize(
    "message",
    [EventsTold(events=()), Answered(number=1, part={}), RosterChanged(change=RosterChange(since=1, revision=2))],
)
def test_what_is_not_said_is_left_out(message: AgentMessage) -> None:
    assert None not in AGENT_MESSAGES.to_json(message).values()
    assert AGENT_MESSAGES.decode(AGENT_MESSAGES.encode(message)) == message


def test_a_coordinator_takes_no_orders() -> None:
    job = Job(JobPlan(min_nodes=1, max_nodes=1), now=0.0)
    loop = ProgressThread("test-coordinator")
    coordinator = Coordinator(
        loop,
        job,
        term=1,
        agent_id="a",
        store="",
        events=EventLog(History(), term=1, agent_id="a", send=lambda agent, said: None),
        send=lambda agent, message: None,
        on_over=lambda outcome: None,
    )
    try:
        coordinator.attach(Attach(agent=INFO))
        with pytest.raises(MessageError) as refused:
            coordinator.hear("a", Start(worker="w", assignment=Assignment(**PLACE)))
        assert (refused.value.kind, refused.value.field) == ("start", "say")
    finally:
        coordinator.close()
        loop.stop()
