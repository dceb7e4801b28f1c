"""What a deployment reports of a fault: who noticed it, and that the process that was given up has ended."""

from __future__ import annotations

import pickle

import pytest

from multiworld.errors import PeerDiedError
from multiworld.serving import Pipeline, Stage
from multiworld.serving.control.fleet.actions import Action, EdgeLost, Emit, FleetEvent, ProcessEnded, Send
from multiworld.serving.control.fleet.members import MemberState
from multiworld.serving.control.history import record_of
from multiworld.serving.errors import MemberLostError, what_happened
from multiworld.serving.member.orders import ORDERS
from multiworld.serving.page.stories import tell
from tests.unit.serving.simulated_fleet import SimulatedFleet, chain, hear, order_of


def events_of(actions: list[Action]) -> list[FleetEvent]:
    return [action.event for action in actions if isinstance(action, Emit)]


def settled() -> SimulatedFleet:
    simulation = SimulatedFleet(chain("a", "b"))
    simulation.run_until_settled()
    simulation.events.clear()
    return simulation


def broken(peer: str, role: str, error: str) -> dict[str, str]:
    return {"event": "edge_broken", "peer": peer, "as": role, "error": error, "text": "gone"}


def test_a_lost_edge_is_told_of_without_advice_that_the_controller_follows() -> None:
    lost = what_happened(PeerDiedError("a-1:b-1", 3, 1, "its connection was closed"))
    assert lost == "lost rank 1, which died: its connection was closed"
    assert what_happened(ValueError("a packet of version 9")) == "a packet of version 9"


def test_each_neighbor_of_a_lost_replica_is_heard_before_and_after_it_is_given_up() -> None:
    simulation = settled()
    fleet, now = simulation.fleet, simulation.now
    early = events_of(hear(fleet, "a-1", broken("b-1", "upstream", "PeerDiedError"), now))
    fleet.lost("b-1", "PeerDiedError", now, died=True)
    late = events_of(hear(fleet, "gateway-1", broken("b-1", "downstream", "PeerDiedError"), now))
    told = [event for event in early + late if isinstance(event, EdgeLost)]
    assert [(event.upstream, event.downstream, event.member) for event in told] == [
        ("a-1", "b-1", "a-1"),
        ("b-1", "gateway-1", "gateway-1"),
    ]


def test_the_end_of_an_edge_to_who_left_as_told_is_not_reported() -> None:
    simulation = settled()
    simulation.do(simulation.fleet.scale("b", 2, simulation.now))
    simulation.run_until_settled()
    simulation.do(simulation.fleet.drain("b-1", simulation.now, scale_down=True))
    simulation.run_until_settled()
    actions = hear(simulation.fleet, "a-1", broken("b-1", "upstream", "PeerLeftError"), simulation.now)
    assert not any(isinstance(event, EdgeLost) for event in events_of(actions))


def test_a_process_that_was_given_up_is_reported_when_it_has_ended() -> None:
    simulation = settled()
    fleet, now = simulation.fleet, simulation.now
    pid = fleet.state.members["b-1"].pid
    simulation.do(fleet.lost("b-1", "PeerStoppedError: it is stopped", now))
    assert not any(isinstance(event, ProcessEnded) for event in simulation.events)
    (ended,) = events_of(fleet.exited("b-1", pid, -9, now))
    assert ended == ProcessEnded(member="b-1", stage="b", returncode=-9, last_lines="")


def test_a_replica_that_crashes_is_reported_with_its_last_words_and_one_that_left_is_not() -> None:
    simulation = settled()
    fleet, now = simulation.fleet, simulation.now
    pid = fleet.state.members["b-1"].pid
    events = events_of(fleet.exited("b-1", pid, 1, now, "Traceback"))
    assert events[0] == ProcessEnded(member="b-1", stage="b", returncode=1, last_lines="Traceback")
    assert fleet.exited("b-1", pid, 0, now) == []
    assert fleet.exited("stranger", 7, 1, now) == []


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            ProcessEnded(member="b-1", stage="b", returncode=-9, last_lines=""),
            "the process of b-1 was killed by SIGKILL",
        ),
        (ProcessEnded(member="b-1", stage="b", returncode=3, last_lines=""), "the process of b-1 ended with status 3"),
        (
            EdgeLost(upstream="a-1", downstream="b-1", member="a-1", error="PeerDiedError", text="it died. Go on."),
            "a-1: a-1 → b-1 broke: it died.",
        ),
    ],
)
def test_reports_are_told_in_words(event: FleetEvent, text: str) -> None:
    assert tell(record_of(event)).text == text


def test_the_loss_that_the_controller_tells_of_names_the_member_in_every_process() -> None:
    error = pickle.loads(pickle.dumps(MemberLostError("b-1")))
    assert error.member == "b-1"
    assert "b-1 is gone" in str(error)


def test_the_channel_of_the_edges_is_known_to_every_member() -> None:
    pipeline = Pipeline([Stage("a", len)], backend="tcp")
    assert pipeline.blueprint(in_main=False).options["backend"] == "tcp"
    assert pipeline.altered(name="other").backend == "tcp"


def test_what_a_replica_executed_when_it_died_is_told_to_those_who_sent_to_it() -> None:
    simulation = settled()
    fleet, now = simulation.fleet, simulation.now
    replica = next(member for member in fleet.state.members.values() if member.stage == "b")
    told = [
        (action.member, order_of(action)["executing"])
        for action in fleet.exited(replica.id, replica.pid, -9, now, "", ["ab"])
        if isinstance(action, Send) and order_of(action)["do"] == "died"
    ]
    senders = {id_ for id_, member in fleet.state.members.items() if member.stage in fleet.state.graph.upstream("b")}
    assert senders
    assert told == [(sender, ["ab"]) for sender in sorted(senders)]
    again = fleet.exited(replica.id, replica.pid, -9, now, "", [])  # it has been given up before its end
    assert {action.member for action in again if isinstance(action, Send)} == senders
    assert not any(isinstance(action, Send) for action in fleet.exited(replica.id, replica.pid, -9, now))


def test_who_is_away_or_gave_a_replica_up_hears_what_it_executed() -> None:
    simulation = settled()
    fleet, now = simulation.fleet, simulation.now
    fleet.await_back("a-1", now)
    pid = fleet.state.members["b-1"].pid
    told = [action for action in fleet.exited("b-1", pid, -9, now, "", ["ab"]) if isinstance(action, Send)]
    assert "a-1" not in {action.member for action in told}
    assert [ORDERS.to_json(message)["do"] for message in fleet.state.members["a-1"].missed] == ["died", "lost"]
    simulation.run_until_settled()
    (leaving,) = [member for member in fleet.state.members.values() if member.stage == "b"]
    leaving.go(MemberState.LEAVING, now)
    fleet.state.members["a-1"].attached, fleet.state.members["a-1"].awaited = True, False
    actions = fleet.exited(leaving.id, leaving.pid, 0, now, "", ["cd"])
    died = [action.member for action in actions if isinstance(action, Send) and order_of(action)["do"] == "died"]
    assert died == ["a-1"]
