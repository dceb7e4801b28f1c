"""What the fleet decides: replacements, edges, drains, scaling, updates, and what it takes over."""

from __future__ import annotations

import json

import pytest

from multiworld.serving.control.fleet.actions import (
    Action,
    BackedOff,
    Emit,
    HostsMissing,
    LoadFailed,
    ReplicaLost,
    Send,
    StageWaits,
    StartProcess,
    UpdateFinished,
    UpdateRolledBack,
)
from multiworld.serving.control.fleet.fleet import Fleet
from multiworld.serving.control.fleet.members import Member, MemberState
from multiworld.serving.control.fleet.saved import SavedFleet
from multiworld.serving.control.fleet.state import FleetState
from multiworld.serving.control.fleet.wiring import Edge, EdgeState, Wiring
from multiworld.serving.errors import DeploymentError, UnknownStageError
from multiworld.serving.graph import Graph, Stage
from multiworld.serving.member.exit_status import IN_VAIN
from multiworld.serving.member.orders import Tune
from multiworld.wire.messages import from_json, to_json
from tests.unit.serving.simulated_fleet import SimulatedFleet, chain, hear, order_of, send


def settled(graph: Graph, *, gateways: int = 1) -> SimulatedFleet:
    simulation = SimulatedFleet(graph, gateways=gateways)
    simulation.run_until_settled()
    return simulation


def test_a_deployment_starts_all_and_opens_every_edge() -> None:
    simulation = settled(Graph([Stage("a", "m:w"), Stage("b", "m:w", replicas=2), Stage("c", "m:w")]))
    assert simulation.open_edges() == {
        ("gateway-1", "a-1"),
        ("a-1", "b-1"),
        ("a-1", "b-2"),
        ("b-1", "c-1"),
        ("b-2", "c-1"),
        ("c-1", "gateway-1"),
    }
    assert simulation.fleet.state.unready_since is None
    assert "PipelineReady" in simulation.kinds()


def test_replicas_of_a_stage_are_spread_over_hosts() -> None:
    simulation = settled(chain("a", replicas=2))
    assert {member.host for member in simulation.fleet.state.of_stage("a")} == {"host-0", "host-1"}


def test_a_stage_runs_only_on_its_hosts() -> None:
    simulation = settled(Graph([Stage("a", "m:w", replicas=3, hosts=("host-1",))]))
    assert {member.host for member in simulation.fleet.state.of_stage("a")} == {"host-1"}


def test_what_cannot_be_placed_is_named() -> None:
    simulation = SimulatedFleet(Graph([Stage("a", "m:w", hosts=("far",))]))
    simulation.run(1)
    assert "none of the hosts far is there" in simulation.fleet.state.missing()
    assert simulation.kinds().count("StageWaits") == 1


def test_a_killed_replica_is_fenced_replaced_and_told_to_all() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    simulation.kill("b-1")
    assert "b-1" in simulation.killed
    assert ("a-1", "b-1") not in simulation.open_edges()
    simulation.run_until_settled(2)
    assert simulation.ready("b") == ["b-2", "b-3"]
    assert ("a-1", "b-3") in simulation.open_edges()
    lost = [event for event in simulation.events if isinstance(event, ReplicaLost)]
    assert [event.member for event in lost] == ["b-1"]


def test_a_hanging_replica_is_killed_and_replaced() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    simulation.hang("b-2")
    assert "b-2" not in simulation.processes
    simulation.run_until_settled(2)
    assert simulation.ready("b") == ["b-1", "b-3"]


def test_a_gateway_comes_again_under_its_name() -> None:
    simulation = settled(chain("a", "b"))
    simulation.kill("gateway-1")
    simulation.run_until_settled(2)
    assert simulation.gateways() == ["gateway-1"]
    assert ("gateway-1", "a-1") in simulation.open_edges()
    assert ("b-1", "gateway-1") in simulation.open_edges()


def test_a_gateway_sends_nothing_before_its_answers_have_a_way_unless_that_takes_long() -> None:
    def edge(upstream: str, downstream: str, state: EdgeState) -> Edge:
        return Edge(upstream=upstream, downstream=downstream, since=0.0, first=0.0, state=state)

    wiring = Wiring(chain("a", "b"))
    members = {
        name: Member(
            id=name,
            stage=name.rpartition("-")[0],
            version=1,
            born=0.0,
            since=0.0,
            state=MemberState.READY,
            attached=True,
        )
        for name in ("gateway-1", "a-1", "b-1", "b-2")
    }
    to_first, answers = ("gateway-1", "a-1"), ("b-1", "gateway-1")
    wiring.edges[to_first] = edge(*to_first, EdgeState.CONNECTED)
    wiring.edges[answers] = edge(*answers, EdgeState.FORMING)
    assert wiring.route(members, 1.0) == []
    assert wiring.route(members, 3.5) != []
    wiring.edges[to_first].state = EdgeState.CONNECTED
    wiring.edges[answers] = edge(*answers, EdgeState.CONNECTED)
    assert [order_of(action)["do"] for action in wiring.route(members, 1.0) if isinstance(action, Send)] == ["open"] * 2
    wiring.edges["b-2", "gateway-1"] = edge("b-2", "gateway-1", EdgeState.FORMING)
    assert wiring.route(members, 1.0) == [], "what is open stays so"


def test_a_gateway_is_not_started_again_where_it_cannot_run() -> None:
    simulation = settled(chain("a"))
    for number in (1, 2):
        simulation.fail(f"gateway-{number}", IN_VAIN, "WARNING\nit needs an extra")
        simulation.run(1)
    assert simulation.gateways() == []
    assert simulation.started == ["gateway-1", "a-1", "gateway-2"]
    waits = [event for event in simulation.events if isinstance(event, StageWaits)]
    assert [(event.stage, event.reason) for event in waits] == [
        ("gateway", "not on host-0: it needs an extra; not on host-1: it needs an extra")
    ]
    simulation.do(simulation.fleet.host_joined("host-2", "10.0.0.2", 8, {}, simulation.now))
    simulation.run_until_settled(2)
    assert simulation.gateways() == ["gateway-3"]
    assert not simulation.fleet.state.gateways_wait_for


def test_a_hanging_gateway_is_killed_so_that_its_host_starts_it_again() -> None:
    simulation = settled(chain("a"))
    before = simulation.processes["gateway-1"].pid
    simulation.hang("gateway-1")
    simulation.run_until_settled(2)
    assert simulation.processes["gateway-1"].pid != before


def test_an_edge_that_breaks_between_two_live_members_is_formed_again() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    simulation.break_edge("a-1", "b-1")
    assert ("a-1", "b-1") not in simulation.open_edges()
    simulation.run_until_settled(2)
    assert ("a-1", "b-1") in simulation.open_edges()
    assert len(simulation.started) == 5


def test_a_replica_whose_edges_fail_again_and_again_is_replaced() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    simulation.cut = {frozenset(("a-1", "b-1")), frozenset(("a-2", "b-1"))}
    simulation.break_edge("a-1", "b-1")
    simulation.break_edge("a-2", "b-1")
    simulation.run_until_settled(15)
    assert simulation.ready("b") == ["b-2", "b-3"]
    assert simulation.ready("a") == ["a-1", "a-2"]


def test_a_gateway_that_is_cut_off_costs_no_replica() -> None:
    simulation = settled(chain("a", replicas=2), gateways=2)
    simulation.cut = {frozenset(("gateway-1", replica)) for replica in ("a-1", "a-2")}
    simulation.break_edge("gateway-1", "a-1")
    simulation.break_edge("gateway-1", "a-2")
    simulation.run(20)
    assert simulation.ready("a") == ["a-1", "a-2"]


def test_a_new_replica_that_cannot_reach_one_of_its_peers_serves_the_others_until_it_is_replaced() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    simulation.cut = {frozenset(("a-1", "b-3"))}
    simulation.do(simulation.fleet.scale("b", 3, simulation.now))
    simulation.run(0.3)
    assert ("a-2", "b-3") in simulation.open_edges()
    simulation.run_until_settled(5)
    assert simulation.ready("b") == ["b-1", "b-2", "b-4"]


@pytest.mark.parametrize("was_ready", [False, True])
def test_an_update_whose_replica_is_cut_off_before_it_settled_is_rolled_back(was_ready: bool) -> None:
    simulation = settled(chain("a", "b"))
    simulation.do(simulation.fleet.update("b", "/weights/2.pt", simulation.now, settle_s=60.0))
    if was_ready:
        simulation.run(1)
        assert simulation.ready("b") == ["b-1", "b-2"]
    simulation.cut = {frozenset(("a-1", "b-2"))}
    simulation.break_edge("a-1", "b-2")
    simulation.run_until_settled(10)
    back = [event for event in simulation.events if isinstance(event, UpdateRolledBack)]
    assert [event.version for event in back] == [2]
    assert "its edges fail: a-1 → b-2" in back[0].reason
    assert simulation.ready("b") == ["b-1"]


def test_a_replica_that_is_cut_off_before_it_served_counts_against_its_host() -> None:
    simulation = settled(chain("a", "b"))
    simulation.cut = {frozenset(("a-1", "b-2"))}
    simulation.do(simulation.fleet.scale("b", 2, simulation.now))
    bad = simulation.fleet.state.members["b-2"].host
    simulation.run_until_settled(10)
    assert simulation.ready("b") == ["b-1", "b-3"]
    assert simulation.fleet.state.members["b-3"].host != bad
    assert simulation.fleet.state.hosts[bad].failures == {"b": 1}


def test_hosts_that_are_expected_are_waited_for_but_not_for_ever() -> None:
    fleet = Fleet(FleetState(chain("a"), now=0.0, hosts=2))
    fleet.host_joined("here", "127.0.0.1", 4, {}, 0.0)
    fleet.tick(5.0)
    assert not fleet.state.members
    actions = fleet.tick(11.0)
    assert list(fleet.state.members) == ["a-1"]
    assert next(action.event for action in actions if isinstance(action, Emit)) == HostsMissing(
        expected=2, present=1, waited_s=10.0
    )
    assert not any(isinstance(action, Emit) and isinstance(action.event, HostsMissing) for action in fleet.tick(12.0))


def test_replicas_that_die_young_back_off_and_the_error_is_kept() -> None:
    simulation = SimulatedFleet(chain("a"), fails_to_load={("a", 1)})
    simulation.run(10)
    delays = [event.delay_s for event in simulation.events if isinstance(event, BackedOff)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert "bad weights" in simulation.fleet.state.plans["a"].last_error
    simulation.bad_versions = set()
    simulation.run_until_settled(10)


def test_a_replica_that_did_work_is_replaced_at_once_however_often_it_is_killed() -> None:
    simulation = settled(chain("a", replicas=2))
    for _ in range(6):
        victim = simulation.ready("a")[-1]
        simulation.do(hear(simulation.fleet, victim, {"event": "stats", "done": 100}, simulation.now))
        simulation.kill(victim)
        simulation.run_until_settled(0.5)


def test_scale_out_starts_all_at_once_and_scale_in_drains_the_newest() -> None:
    simulation = settled(chain("a", "b"))
    actions = simulation.fleet.scale("b", 3, simulation.now)
    assert len([action for action in actions if isinstance(action, StartProcess)]) == 2
    simulation.do(actions)
    simulation.run_until_settled()
    assert simulation.ready("b") == ["b-1", "b-2", "b-3"]
    simulation.do(simulation.fleet.scale("b", 1, simulation.now))
    simulation.run_until_settled()
    assert simulation.ready("b") == ["b-1"]
    assert list(simulation.processes) == ["gateway-1", "a-1", "b-1"]


def test_very_many_replicas_begin_some_at_a_time_on_each_host() -> None:
    """All at once they would starve each other: none would be up in time, and all would be given up and made anew."""
    simulation = settled(chain("a"))
    actions = simulation.fleet.scale("a", 100, simulation.now)
    begun = [action.host for action in actions if isinstance(action, StartProcess)]
    assert {host: begun.count(host) for host in begun} == {"host-0": 32, "host-1": 32}  # four for each of 8 cores
    simulation.do(actions)
    simulation.run_until_settled()
    assert len(simulation.ready("a")) == 100


def test_more_replicas_than_hosts_are_of_use_for_must_be_forced() -> None:
    simulation = settled(Graph([Stage("a", "app:work"), Stage("b", "app:work", max_replicas=3)]))
    most, why = simulation.fleet.most_replicas("a")
    assert (most, "16 cores" in why) == (128, True)
    assert simulation.fleet.most_replicas("b") == (3, "max_replicas of stage 'b'")


def test_scaling_in_ends_what_does_not_serve_yet_first() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.scale("a", 3, simulation.now))
    simulation.do(simulation.fleet.scale("a", 1, simulation.now))
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-1"]


@pytest.mark.parametrize("replicas", [-1, 1.5, True, 5000])
def test_a_senseless_scale_is_refused(replicas: int) -> None:
    simulation = settled(chain("a"))
    with pytest.raises(ValueError, match="replicas"):
        simulation.fleet.scale("a", replicas, simulation.now)


def test_orders_for_what_is_not_there_are_refused() -> None:
    fleet = settled(chain("a")).fleet
    with pytest.raises(UnknownStageError):
        fleet.scale("z", 1, 200.0)
    with pytest.raises(UnknownStageError):
        fleet.drain("a-9", 200.0)
    with pytest.raises(DeploymentError):
        fleet.drain("a-1", 200.0, scale_down=True)


def test_a_drained_replica_is_replaced_first() -> None:
    simulation = settled(chain("a", "b"))
    actions = simulation.fleet.drain("b-1", simulation.now)
    simulation.do(actions)
    assert simulation.fleet.state.members["b-1"].is_ready
    simulation.run_until_settled()
    assert simulation.ready("b") == ["b-2"]
    assert "b-1" not in simulation.processes
    assert "b-1" not in simulation.killed


def test_replicas_that_are_too_many_end_one_after_the_other_but_none_waits_long_for_anothers_work() -> None:
    simulation = settled(chain("a", replicas=3))
    simulation.processes["a-1"].hangs = True  # with work that takes long, it says nothing of its end
    simulation.do(simulation.fleet.scale("a", 1, simulation.now))
    simulation.run(0.15)
    assert simulation.kinds().count("ReplicaDraining") == 1
    simulation.run(0.2)
    assert simulation.kinds().count("ReplicaDraining") == 2
    assert simulation.ready("a") == ["a-3"]


def updated_until_one_ends_slowly() -> SimulatedFleet:
    """Of two replicas, a-1 has been told to drain and says nothing; a-3 has the new weights."""
    simulation = settled(chain("a", replicas=2))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.processes["a-1"].hangs = True
    while "ReplicaDraining" not in simulation.kinds():
        simulation.run(0.05)
    return simulation


def test_an_update_begins_no_replica_while_another_one_is_just_ending() -> None:
    simulation = updated_until_one_ends_slowly()
    assert simulation.started[-1] == "a-3"
    simulation.run(0.15)
    assert simulation.started[-1] == "a-3"
    simulation.run(0.2)
    assert simulation.started[-1] == "a-4"


def test_what_an_update_lacks_begins_at_once_also_while_another_one_is_ending() -> None:
    simulation = updated_until_one_ends_slowly()
    simulation.kill("a-2")
    assert simulation.started[-1] == "a-4"


def test_a_drain_may_scale_down() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.do(simulation.fleet.drain("a-1", simulation.now, scale_down=True))
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-2"]
    assert simulation.fleet.state.plans["a"].desired == 1


def test_a_new_replica_takes_its_weights_from_a_live_one() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.scale("a", 2, simulation.now))
    simulation.run_until_settled()
    assert simulation.donations == [("a-1", "a-2")]


def test_if_the_donor_dies_another_one_gives_the_weights() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.do(simulation.fleet.scale("a", 3, simulation.now))
    simulation.do(
        hear(
            simulation.fleet,
            "a-3",
            {"event": "hello", "pid": simulation.processes["a-3"].pid, "state": "starting"},
            simulation.now,
        )
    )
    donor = simulation.fleet.state.members["a-3"].donor
    assert donor == "a-1"
    simulation.kill(donor)
    simulation.run_until_settled()
    assert ("a-2", "a-3") in simulation.donations


def test_work_that_cannot_be_made_is_not_tried_once_for_each_donor() -> None:
    simulation = settled(chain("a", replicas=3))
    simulation.do(simulation.fleet.scale("a", 4, simulation.now))
    simulation.processes["a-4"].loads = False
    simulation.run(0.2)
    assert "a-4" not in simulation.fleet.state.members
    assert [event.source for event in simulation.events if isinstance(event, LoadFailed)] == ["a-1"]
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-1", "a-2", "a-3", "a-5"]


@pytest.mark.parametrize("has_died", [False, True])
def test_a_replica_that_no_donor_reaches_never_begins_with_other_weights_than_theirs(has_died: bool) -> None:
    """One that has died is found out a little later: then there is nobody whose weights it could have."""
    simulation = settled(chain("a"))
    fleet = simulation.fleet
    simulation.do(fleet.scale("a", 2, simulation.now))
    new = simulation.processes["a-2"]
    new.loads = None
    simulation.run(0.1)
    assert fleet.state.members["a-2"].donor == "a-1"
    failed = {"event": "load_failed", "donor": "a-1", "error": "PeerDiedError", "hand_over_failed": True}
    simulation.do(hear(fleet, "a-2", failed, simulation.now))
    new.loads = True
    simulation.run(2.5)
    assert [process.state for process in simulation.processes.values()][-1] == "starting", "it waits"
    if has_died:
        simulation.kill("a-1")
        simulation.run(0.2)
        assert new.state == "loaded"
        return
    simulation.run(0.7)
    lost = [event for event in simulation.events if isinstance(event, ReplicaLost)]
    assert [(event.member, event.why) for event in lost] == [("a-2", "a-1 could not give it the weights")]
    simulation.run_until_settled()
    assert simulation.donations[-1] == ("a-1", "a-3")


def test_a_replica_that_waits_for_a_donor_is_dismissed_as_others_are() -> None:
    simulation = settled(chain("a"))
    fleet = simulation.fleet
    simulation.do(fleet.scale("a", 2, simulation.now))
    simulation.processes["a-2"].loads = None
    simulation.run(0.1)
    failed = {"event": "load_failed", "donor": "a-1", "error": "PeerDiedError", "hand_over_failed": True}
    simulation.do(hear(fleet, "a-2", failed, simulation.now))
    simulation.run(2.5)
    simulation.do(fleet.scale("a", 1, simulation.now))
    simulation.processes["a-2"].inbox.clear()  # it takes its time to leave
    simulation.run(0.7)
    assert fleet.state.members["a-2"].state is MemberState.LEAVING
    assert not any(isinstance(event, ReplicaLost) for event in simulation.events)


def test_an_update_replaces_one_by_one_and_never_has_less_than_before() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    simulation.do(simulation.fleet.update("b", "/weights/2.pt", simulation.now))
    fewest, most = 9, 0
    while simulation.fleet.state.plans["b"].rollout is not None:
        simulation.run(0.05)
        fewest = min(fewest, simulation.fleet.state.num_open("b"))
        most = max(most, len(simulation.fleet.state.of_stage("b")))
    assert (fewest, most <= 4) == (2, True)
    simulation.run_until_settled()
    assert [member.version for member in simulation.fleet.state.of_stage("b")] == [2, 2]
    assert simulation.fleet.state.plans["b"].version == 2
    assert "UpdateFinished" in simulation.kinds()


def test_a_parallel_update_starts_all_new_ones_first() -> None:
    simulation = settled(chain("a", replicas=3))
    actions = simulation.fleet.update("a", "/weights/2.pt", simulation.now, parallel=True)
    assert len([action for action in actions if isinstance(action, StartProcess)]) == 3
    simulation.do(actions)
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-4", "a-5", "a-6"]


def test_an_update_that_does_not_load_is_rolled_back() -> None:
    simulation = SimulatedFleet(chain("a", replicas=2), fails_to_load={("a", 2)})
    simulation.run_until_settled()
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-1", "a-2"]
    back = [event for event in simulation.events if isinstance(event, UpdateRolledBack)]
    assert (back[0].version, back[0].previous) == (2, 1)
    assert "bad weights" in back[0].reason


@pytest.mark.parametrize("is_excused", [True, False])
def test_an_update_is_not_rolled_back_for_want_of_descriptors_on_a_host(is_excused: bool) -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    failed = simulation.started[-1]
    host = simulation.fleet.state.members[failed].host
    del simulation.processes[failed]
    why = "Too many open files"
    simulation.do(simulation.fleet.start_failed(failed, why, simulation.now, is_excused=is_excused))
    simulation.run_until_settled()
    assert ("UpdateRolledBack" not in simulation.kinds()) is is_excused
    assert "BackedOff" not in simulation.kinds()
    [replica] = simulation.fleet.state.of_stage("a")
    assert (replica.version == 2) is is_excused
    if is_excused:
        assert replica.host != host


def test_updates_that_are_rolled_back_do_not_delay_what_replaces_the_healthy_version() -> None:
    simulation = SimulatedFleet(chain("a", "b", replicas=2), fails_to_load={("b", 2), ("b", 3)})
    simulation.run_until_settled()
    simulation.do(simulation.fleet.update("b", "/weights/2.pt", simulation.now))
    simulation.run_until_settled()
    simulation.do(simulation.fleet.update("b", "/weights/3.pt", simulation.now))
    simulation.run_until_settled()
    simulation.do(simulation.fleet.update("b", "/weights/4.pt", simulation.now))
    simulation.cut = {frozenset((peer, "b-5")) for peer in ("a-1", "a-2")}
    simulation.run_until_settled()
    assert simulation.kinds().count("UpdateRolledBack") == 3
    assert "BackedOff" not in simulation.kinds()
    simulation.do(hear(simulation.fleet, "b-1", {"event": "stats", "done": 100}, simulation.now))
    simulation.kill("b-1")
    assert simulation.started[-1] == "b-6"


def test_weights_prove_themselves_in_one_replica_also_where_none_is_wanted() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.do(simulation.fleet.scale("a", 0, simulation.now))
    simulation.run(5)
    assert simulation.ready("a") == []
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.run(5)
    assert simulation.started[-1] == "a-3"
    assert simulation.ready("a") == []
    assert [event.version for event in simulation.events if isinstance(event, UpdateFinished)] == [2]


def test_weights_are_tried_also_where_the_next_stage_sleeps_too_and_get_no_request_meanwhile() -> None:
    simulation = settled(chain("a", "b"))
    for stage in ("a", "b"):
        simulation.do(simulation.fleet.scale(stage, 0, simulation.now))
    simulation.run(2)
    edges = len([event for event in simulation.events if type(event).__name__ == "EdgeOpened"])
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.run(2)
    assert simulation.fleet.state.plans["a"].rollout is None
    assert simulation.fleet.state.plans["a"].version == 2
    assert len([event for event in simulation.events if type(event).__name__ == "EdgeOpened"]) == edges
    assert not simulation.fleet.state.of_stage("a")
    for stage in ("a", "b"):
        simulation.do(simulation.fleet.scale(stage, 1, simulation.now))
    simulation.run_until_settled()
    assert [member.version for member in simulation.fleet.state.of_stage("a")] == [2]


def test_a_controller_that_is_started_again_expects_no_more_hosts_than_it_had_members_on() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.stop_host("host-1")
    simulation.run_until_settled()
    simulation.restart_controller()
    simulation.run(15)
    assert "HostsMissing" not in simulation.kinds()


def test_very_many_that_are_too_many_end_some_at_once() -> None:
    simulation = settled(chain("a", replicas=65))
    simulation.do(simulation.fleet.scale("a", 1, simulation.now))
    assert simulation.kinds().count("ReplicaDraining") == 4


def test_weights_that_do_not_load_are_rolled_back_also_where_no_replica_is_wanted() -> None:
    simulation = SimulatedFleet(chain("a"), fails_to_load={("a", 2)})
    simulation.run_until_settled()
    simulation.do(simulation.fleet.scale("a", 0, simulation.now))
    simulation.run(5)
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.run(5)
    assert simulation.fleet.state.plans["a"].version == 1
    simulation.do(simulation.fleet.scale("a", 1, simulation.now))
    simulation.run_until_settled()
    assert [member.version for member in simulation.fleet.state.of_stage("a")] == [1]


def test_an_update_whose_replica_dies_before_it_settled_is_rolled_back() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now, settle_s=5.0))
    simulation.run(1)
    assert simulation.ready("a") == ["a-1", "a-2", "a-3"]
    simulation.kill("a-3")
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-1", "a-2"]
    assert "UpdateRolledBack" in simulation.kinds()


def test_an_update_with_a_bad_verdict_is_rolled_back_and_a_good_one_goes_on() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now, needs_verdict=True))
    simulation.run(5)
    assert simulation.ready("a") == ["a-1", "a-2"]
    simulation.do(simulation.fleet.judge("a", False, "other answers", simulation.now))
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-1"]
    simulation.do(simulation.fleet.update("a", "/weights/3.pt", simulation.now, needs_verdict=True))
    simulation.run(2)
    simulation.do(simulation.fleet.judge("a", True, "", simulation.now))
    simulation.run_until_settled()
    assert [member.version for member in simulation.fleet.state.of_stage("a")] == [3]


def test_two_updates_of_a_stage_at_once_are_refused() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    with pytest.raises(DeploymentError):
        simulation.fleet.update("a", "/weights/3.pt", simulation.now)


def test_a_change_of_batching_reaches_those_that_come_later_too() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.tune("a", {"batch_max_size": 8}, simulation.now))
    expected = {"batch_max_size": 8, "batch_max_wait_s": 0.0}
    assert simulation.processes["a-1"].inbox[-1] == {"do": "tune", **expected}
    simulation.do(simulation.fleet.scale("a", 2, simulation.now))
    simulation.run_until_settled()
    assert simulation.fleet.state.plans["a"].tuning == Tune(batch_max_size=8, batch_max_wait_s=0.0)
    with pytest.raises(ValueError, match="max_size"):
        simulation.fleet.tune("a", {"batch_max_size": 0}, simulation.now)
    with pytest.raises(ValueError, match="unknown settings"):
        simulation.fleet.tune("a", {"speed": 9}, simulation.now)


def test_a_stage_whose_requests_cannot_be_concatenated_gets_no_batches() -> None:
    simulation = settled(Graph([Stage("a", print, batch=False)]))
    with pytest.raises(ValueError, match="stage 'a' executes one request at a time"):
        simulation.fleet.tune("a", {"batch_max_size": 8}, simulation.now)
    assert not simulation.fleet.state.plans["a"].tuning


def test_a_lost_host_gets_nothing_and_its_members_stay_while_their_worlds_stand() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.do(simulation.fleet.host_lost("host-0", simulation.now))
    simulation.run(1)
    assert len(simulation.ready("a")) == 2
    simulation.do(simulation.fleet.scale("a", 4, simulation.now))
    simulation.run(2)
    assert {member.host for member in simulation.fleet.state.of_stage("a") if member.id in ("a-3", "a-4")} == {"host-1"}


def test_a_host_that_comes_back_has_what_was_given_up_ended() -> None:
    simulation = settled(chain("a"))
    actions = simulation.fleet.host_joined("host-9", "10.0.0.9", 4, {"a-0": 77, "other": 5}, simulation.now)
    simulation.do(actions)
    assert simulation.killed == ["a-0"]


def test_hosts_that_do_not_come_back_are_forgotten_but_not_while_members_of_theirs_live() -> None:
    simulation = settled(chain("a", replicas=2))
    fleet = simulation.fleet
    simulation.do(fleet.host_joined("host-2", "10.0.0.2", 8, {}, simulation.now))
    for name in ("host-1", "host-2"):
        simulation.do(fleet.host_lost(name, simulation.now))
    simulation.run(590, step_s=10)
    assert set(fleet.state.hosts) == {"host-0", "host-1", "host-2"}
    simulation.run(20, step_s=10)
    assert set(fleet.state.hosts) == {"host-0", "host-1"}
    simulation.do(fleet.host_joined("host-2", "10.0.0.2", 8, {"a-0": 77}, simulation.now))
    assert simulation.killed == ["a-0"], "what was given up meanwhile ends also now"
    simulation.run(1000, step_s=10)
    assert "host-2" in fleet.state.hosts


def test_a_controller_that_is_started_again_adopts_what_runs() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    processes = {name: process.pid for name, process in simulation.processes.items()}
    edges = simulation.open_edges()
    simulation.restart_controller()
    simulation.run_until_settled()
    assert {name: process.pid for name, process in simulation.processes.items()} == processes
    assert simulation.open_edges() == edges
    simulation.kill("b-1")
    simulation.run_until_settled()
    assert simulation.ready("b") == ["b-2", "b-3"]


def test_a_gateway_that_died_while_it_was_awaited_is_the_next_one_though_its_end_is_heard_of_later() -> None:
    simulation = settled(chain("a"))
    fleet, gateway = simulation.fleet, simulation.fleet.state.members["gateway-1"]
    dead = gateway.pid
    fleet.await_back("gateway-1", simulation.now)
    simulation.pids += 1
    fresh = simulation.processes["gateway-1"]
    fresh.pid, fresh.state, fresh.edges, fresh.open = simulation.pids, "starting", set(), set()
    simulation._hello(fresh)
    simulation.do(fleet.exited("gateway-1", dead, -9, simulation.now))
    assert (gateway.attached, gateway.is_ready, gateway.pid) == (True, True, fresh.pid)
    simulation.run_until_settled(2)
    assert {("gateway-1", "a-1"), ("a-1", "gateway-1")} <= simulation.open_edges()


def test_members_that_do_not_come_back_to_a_new_controller_are_lost() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.processes["a-1"].hangs = True
    simulation.restart_controller()
    simulation.run(4)
    assert simulation.fleet.state.resuming
    assert len(simulation.fleet.state.of_stage("a")) == 2
    simulation.run_until_settled(3)
    assert simulation.ready("a") == ["a-2", "a-3"]
    assert "a-1" not in simulation.processes


def test_a_restart_in_the_middle_of_an_update_goes_on_with_it() -> None:
    simulation = settled(chain("a", replicas=2))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.run(0.5)
    simulation.restart_controller()
    simulation.run_until_settled()
    assert [member.version for member in simulation.fleet.state.of_stage("a")] == [2, 2]


def test_stopping_ends_gateways_before_replicas() -> None:
    simulation = settled(chain("a", "b"))
    simulation.do(simulation.fleet.stop(simulation.now))
    told = {name: [message["do"] for message in each.inbox] for name, each in simulation.processes.items()}
    assert told == {"gateway-1": ["drain"], "a-1": [], "b-1": []}
    simulation.run(1)
    assert not simulation.fleet.state.members


def test_replicas_do_not_wait_for_ever_for_a_gateway_that_does_not_end() -> None:
    simulation = settled(chain("a"))
    simulation.processes["gateway-1"].hangs = True
    simulation.do(simulation.fleet.stop(simulation.now, gateways_s=3.0))
    simulation.run(2)
    assert set(simulation.processes) == {"gateway-1", "a-1"}
    simulation.run(2)
    assert set(simulation.processes) == {"gateway-1"}
    simulation.run(7)
    assert not simulation.processes
    assert not simulation.fleet.state.members


def test_a_gateway_of_another_process_is_drained_and_leaves_by_itself() -> None:
    fleet = Fleet(FleetState(chain("a"), now=0.0))
    fleet.member_attached("gateway-1", 0.0)
    hello = {"event": "hello", "pid": 1, "host": "", "state": "loaded", "edges": []}
    actions = hear(fleet, "gateway-1", hello, 0.0)
    assert [order_of(action)["do"] for action in actions if isinstance(action, Send)] == ["readiness"]
    assert fleet.stop(1.0) == [send("gateway-1", {"do": "drain"})]
    assert hear(fleet, "gateway-1", {"event": "drained"}, 1.0) == [send("gateway-1", {"do": "leave"})]
    fleet.lost("gateway-1", "it left", 1.0, died=True)
    assert not fleet.state.members
    with pytest.raises(ValueError, match="gateway"):
        fleet.member_attached("a-1", 1.0)


def test_a_stage_scaled_to_nothing_says_so_and_wakes_again() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.scale("a", 0, simulation.now))
    simulation.run(1)
    assert "scaled to 0" in simulation.fleet.state.missing()
    simulation.do(simulation.fleet.scale("a", 1, simulation.now))
    simulation.run_until_settled()


def test_late_news_of_an_earlier_process_of_the_same_name_changes_nothing() -> None:
    simulation = settled(chain("a"))
    assert simulation.fleet.exited("gateway-1", 9999, -9, simulation.now) == []
    assert hear(simulation.fleet, "a-7", {"event": "loaded"}, simulation.now) == []
    assert simulation.fleet.lost("a-7", "gone", simulation.now) == []


def test_a_process_that_says_nothing_is_given_up() -> None:
    fleet = Fleet(FleetState(chain("a"), now=0.0))
    fleet.host_joined("here", "127.0.0.1", 4, {}, 0.0)
    fleet.tick(61.0)
    assert list(fleet.state.members) == ["a-2"]


def test_a_step_that_is_not_in_the_table_raises() -> None:
    member = Member(id="a-1", stage="a", version=1, born=0.0, state=MemberState.LEAVING)
    with pytest.raises(AssertionError):
        member.go(MemberState.READY, 1.0)


def test_scaling_is_suspended_while_something_is_under_way() -> None:
    simulation = settled(chain("a"))
    assert simulation.fleet.state.scaling_suspended("a", simulation.now) == ""
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    assert "version 2" in simulation.fleet.state.scaling_suspended("a", simulation.now)


@pytest.mark.parametrize("stats", [{"executing_s": 2.5}, {"executing_s": 0.0}])
def test_a_replica_whose_work_hangs_is_replaced(stats: dict[str, float]) -> None:
    """It says so, or says nothing any more because the work holds all of it."""
    simulation = SimulatedFleet(Graph([Stage("a", "m:a", limit_s=2.0)]))
    simulation.run_until_settled()
    simulation.do(hear(simulation.fleet, "a-1", {"event": "stats", **stats}, simulation.now))
    simulation.run(1.0)
    assert ("a-1" not in simulation.fleet.state.members) == (stats["executing_s"] > 2.0)
    simulation.run(6.0)
    assert list(simulation.fleet.state.members) == ["gateway-1", "a-2"]


def test_a_gateway_that_could_not_be_started_is_started_under_another_name_a_little_later() -> None:
    simulation = SimulatedFleet(chain("a"))
    del simulation.processes["gateway-1"]
    simulation.do(simulation.fleet.start_failed("gateway-1", "no memory", simulation.now))
    simulation.run(0.5)
    assert simulation.gateways() == []
    simulation.run_until_settled()
    assert simulation.gateways() == ["gateway-2"]


def test_a_gateway_that_says_nothing_after_its_start_is_replaced() -> None:
    simulation = SimulatedFleet(chain("a"))
    simulation.processes["gateway-1"].hangs = True
    simulation.run(59)
    assert simulation.gateways() == ["gateway-1"]
    simulation.run(3)
    assert simulation.gateways() == ["gateway-2"]


def test_gateways_wait_a_while_for_the_host_of_the_controller() -> None:
    fleet = Fleet(FleetState(chain("a"), now=0.0, gateways=1, local_addresses=("127.0.0.1",)))
    far = fleet.host_joined("far", "10.0.0.9", 8, {}, 0.0)
    assert [action.member for action in far if isinstance(action, StartProcess)] == ["a-1"]
    near = fleet.host_joined("near", "127.0.0.1", 8, {}, 1.0)
    assert [(action.member, action.host) for action in near if isinstance(action, StartProcess)] == [
        ("gateway-1", "near")
    ]
    fleet = Fleet(FleetState(chain("a"), now=0.0, gateways=1, local_addresses=("127.0.0.1",)))
    fleet.host_joined("far", "10.0.0.9", 8, {}, 0.0)
    late = fleet.tick(11.0)
    assert [(action.member, action.host) for action in late if isinstance(action, StartProcess)] == [
        ("gateway-1", "far")
    ]


def limited() -> SimulatedFleet:
    simulation = SimulatedFleet(Graph([Stage("a", "m:a", limit_s=1.0)]))
    simulation.run_until_settled()
    simulation.do(hear(simulation.fleet, "a-1", {"event": "stats", "executing_s": 0.0}, simulation.now))
    return simulation


def test_nobody_hangs_because_the_controller_was_away() -> None:
    simulation = limited()
    simulation.now += 30
    simulation.fleet.was_away(30, simulation.now)
    simulation.run(1)
    assert list(simulation.fleet.state.members) == ["gateway-1", "a-1"]
    simulation.fleet.await_back("a-1", simulation.now)
    simulation.processes["a-1"].hangs = True
    simulation.now += 30
    simulation.fleet.was_away(30, simulation.now)
    simulation.run(1)
    assert simulation.fleet.state.members["a-1"].awaited, "it has had no time to come back"
    simulation.processes["a-1"].hangs = False
    simulation.run(1)
    assert not simulation.fleet.state.members["a-1"].awaited
    simulation.now += 3
    simulation.do(hear(simulation.fleet, "a-1", {"event": "drained"}, simulation.now))  # any word will do
    simulation.run(2)
    assert "a-1" in simulation.fleet.state.members


def test_who_loads_may_be_silent_for_longer_than_its_work() -> None:
    simulation = limited()
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.processes["a-2"].loads = None
    for _ in range(20):
        simulation.run(1)
        simulation.do(hear(simulation.fleet, "a-1", {"event": "stats"}, simulation.now))
        if (
            simulation.fleet.state.members["a-2"].state is MemberState.LOADING
            and not simulation.fleet.state.members["a-2"].stats
        ):
            simulation.do(hear(simulation.fleet, "a-2", {"event": "stats", "rss_bytes": 1}, simulation.now))
    assert simulation.fleet.state.members["a-2"].state is MemberState.LOADING
    assert "UpdateRolledBack" not in simulation.kinds()


def test_beside_a_stage_that_sleeps_replicas_come_and_go() -> None:
    graph = Graph([Stage("a", "m:w"), Stage("b", "m:w", min_replicas=0)])
    simulation = settled(graph)
    simulation.do(simulation.fleet.scale("b", 0, simulation.now))
    simulation.run(3)
    assert simulation.ready("b") == []
    simulation.do(simulation.fleet.scale("a", 2, simulation.now))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.run(20)
    assert [member.version for member in simulation.fleet.state.of_stage("a")] == [2, 2]
    assert all(member.is_ready for member in simulation.fleet.state.of_stage("a"))
    simulation.do(simulation.fleet.scale("b", 1, simulation.now))
    simulation.run_until_settled()


def test_a_stage_behind_one_that_sleeps_is_ready_for_the_request_that_wakes_it() -> None:
    simulation = settled(Graph([Stage("a", "m:w", min_replicas=0), Stage("b", "m:w")]))
    fleet = simulation.fleet
    simulation.do(fleet.scale("a", 0, simulation.now))
    simulation.run(3)
    assert (fleet.state.missing(), fleet.state.num_open("b"), fleet.state.has_come_up) == ("", 1, True)
    assert simulation.processes["gateway-1"].ready, "else no request would come"
    simulation.do(fleet.scale("b", 2, simulation.now))
    simulation.run(3)
    assert fleet.state.num_open("b") == 2
    simulation.do(fleet.update("a", "/weights/2.pt", simulation.now))
    assert fleet.state.missing() == "", "nor are weights that are tried there a reason"
    simulation.run(3)
    assert "PipelineUnready" not in simulation.kinds()
    simulation.do(fleet.scale("a", 1, simulation.now))
    assert fleet.state.num_open("b") == 0
    simulation.run_until_settled()
    assert fleet.state.num_open("b") == 2


def test_who_comes_back_is_told_again_what_it_may_have_missed() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    fleet, now = simulation.fleet, simulation.now
    simulation.do(fleet.tune("b", {"batch_max_size": 4}, now))
    simulation.run(0.2)
    fleet.await_back("a-1", now)
    simulation.do(fleet.drain("b-1", now, scale_down=True))
    fleet.await_back("b-2", now)
    simulation.do(fleet.tune("b", {"batch_max_size": 8}, now))
    away = simulation.processes["a-1"]
    assert "b-1" in away.open, "nobody could tell it"
    simulation.run(0.3)
    assert away.open == {"b-2"}
    assert simulation.processes["b-2"].tuning["batch_max_size"] == 8


def test_a_gateway_that_comes_while_others_are_awaited_hears_at_last_that_all_is_ready() -> None:
    simulation = settled(chain("a"), gateways=2)
    fleet = simulation.fleet
    fleet.await_back("a-1", simulation.now)
    simulation.processes["a-1"].hangs = True
    simulation.kill("gateway-2")
    simulation.run(1)
    assert not simulation.processes["gateway-2"].ready
    simulation.processes["a-1"].hangs = False
    simulation.run(1)
    assert simulation.processes["gateway-2"].ready


def lost_messages(simulation: SimulatedFleet, actions: list[Action]) -> list[tuple[str, str]]:
    simulation.do(actions)
    sent = [action for action in actions if isinstance(action, Send)]
    return [(action.member, order_of(action)["peer"]) for action in sent if order_of(action)["do"] == "lost"]


def test_nobody_hears_of_the_loss_of_who_never_came() -> None:
    simulation = SimulatedFleet(chain("a"), gateways=2)
    simulation.run_until_settled()
    simulation.kill("gateway-2")
    del simulation.processes["gateway-2"]
    assert lost_messages(simulation, simulation.fleet.start_failed("gateway-2", "no memory", simulation.now)) == []


def test_who_leaves_with_what_it_holds_is_lost_for_the_others() -> None:
    simulation = settled(chain("a", "b", replicas=2))
    simulation.do(simulation.fleet.drain("b-1", simulation.now, scale_down=True))
    simulation.processes["b-1"].hangs = True
    simulation.fleet.state.members["b-1"].since = simulation.now - 61
    told = lost_messages(simulation, simulation.fleet.tick(simulation.now))
    assert set(told) == {(name, "b-1") for name in ("gateway-1", "a-1", "a-2", "b-2")}


@pytest.mark.parametrize("limit_s", [None, 300.0])
def test_who_drains_may_finish_what_it_executes_however_long_that_takes(limit_s: float | None) -> None:
    simulation = SimulatedFleet(Graph([Stage("a", "m:w", replicas=2, limit_s=limit_s)]))
    simulation.run_until_settled()
    simulation.do(simulation.fleet.drain("a-1", simulation.now, scale_down=True))
    member = simulation.fleet.state.members["a-1"]
    simulation.processes["a-1"].inbox.clear()  # the end of its work is what it waits for

    def say(name: str, **stats: float) -> None:
        simulation.do(hear(simulation.fleet, name, {"event": "stats", **stats}, simulation.now))

    for second in range(1, 201):
        say("a-1", executing=1, executing_s=second)
        say("a-2", executing=0)
        simulation.run(1)
        assert member.state is MemberState.DRAINING
    say("a-1", executing=0, executing_s=0.0)
    simulation.run(50)
    assert member.state is MemberState.DRAINING, "its answer is on its way"
    simulation.run(12)
    assert "a-1" not in simulation.fleet.state.members, "it holds something, and nobody knows what for"


def test_who_drains_and_executes_for_longer_than_it_may_is_ended() -> None:
    simulation = SimulatedFleet(Graph([Stage("a", "m:w", replicas=2, limit_s=100.0)]))
    simulation.run_until_settled()
    simulation.do(simulation.fleet.drain("a-1", simulation.now, scale_down=True))
    simulation.processes["a-1"].inbox.clear()
    stats = {"event": "stats", "executing": 1, "executing_s": 101.0}
    simulation.do(hear(simulation.fleet, "a-1", stats, simulation.now))
    simulation.run(0.1)
    assert "a-1" not in simulation.fleet.state.members


def test_who_comes_back_hears_which_gateways_there_are() -> None:
    simulation = settled(chain("a"), gateways=2)
    fleet = simulation.fleet
    fleet.await_back("a-1", simulation.now)
    hello = {"event": "hello", "pid": 7, "state": "ready", "version": 1, "edges": []}
    told = [order_of(action) for action in hear(fleet, "a-1", hello, simulation.now) if isinstance(action, Send)]
    assert {"do": "gateways", "there": ["gateway-1", "gateway-2"]} in told


def test_new_replicas_of_an_update_that_is_rolled_back_end_one_after_the_other() -> None:
    simulation = settled(chain("a", replicas=3))
    simulation.do(simulation.fleet.update("a", "/w.pt", simulation.now, parallel=True, needs_verdict=True))
    simulation.run(3)
    assert len(simulation.ready("a")) == 6
    simulation.events.clear()
    simulation.do(simulation.fleet.judge("a", False, "no", simulation.now))
    simulation.run_until_settled()
    ends = [kind for kind in simulation.kinds() if kind in ("ReplicaDraining", "ReplicaLeft")]
    assert ends == ["ReplicaDraining", "ReplicaLeft"] * 3
    assert [member.version for member in simulation.fleet.state.of_stage("a")] == [1, 1, 1]


def test_gateways_start_where_the_controller_is() -> None:
    fleet = Fleet(FleetState(chain("a"), now=0.0, gateways=2, hosts=2, local_addresses=("127.0.0.1",)))
    fleet.host_joined("a-host", "127.0.0.1", 8, {}, 0.0)
    actions = fleet.host_joined("own", "127.0.0.1", 8, {"controller": 7}, 0.0)
    starts = [action for action in actions if isinstance(action, StartProcess) and action.stage == "gateway"]
    assert [start.host for start in starts] == ["own", "own"]


def test_a_host_on_which_a_stage_does_not_load_is_not_chosen_again_while_another_is_free() -> None:
    simulation = settled(chain("a"))
    place = simulation.fleet.state.members["a-1"].host
    bad = next(name for name in simulation.fleet.state.hosts if name != place)
    simulation.do(simulation.fleet.scale("a", 2, simulation.now))
    started = simulation.fleet.state.members["a-2"]
    assert started.host == bad
    simulation.fail("a-2", 1, "ModuleNotFoundError")
    simulation.run_until_settled()
    assert {member.host for member in simulation.fleet.state.of_stage("a")} == {place}


@pytest.mark.parametrize("settle_s", [float("nan"), float("inf"), -1.0])
def test_a_time_to_settle_that_never_ends_is_refused(settle_s: float) -> None:
    simulation = settled(chain("a"))
    with pytest.raises(ValueError, match="settle_s"):
        simulation.fleet.update("a", "/weights/2.pt", simulation.now, settle_s=settle_s)
    assert simulation.fleet.state.plans["a"].rollout is None


def test_what_was_rolled_back_is_not_kept() -> None:
    simulation = SimulatedFleet(chain("a"), fails_to_load={("a", 2)})
    simulation.run_until_settled()
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    simulation.run_until_settled()
    assert simulation.fleet.state.plans["a"].weights == {}


@pytest.mark.parametrize("state", ["starting", "loaded"])
def test_a_replica_whose_update_is_rolled_back_while_members_are_awaited_neither_loads_nor_serves(state: str) -> None:
    """Else it would make its work with the weights of the beginning, and serve them as those of the update."""
    simulation = settled(chain("a", replicas=2), gateways=2)
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now, parallel=True))
    new = simulation.processes["a-4"]
    new.state, new.version = state, 2
    simulation.processes["gateway-2"].hangs = True
    del simulation.processes["a-3"]
    simulation.restart_controller()
    assert "UpdateRolledBack" in simulation.kinds()
    simulation.run(1)
    assert simulation.fleet.state.resuming
    assert new.state == state
    assert simulation.ready("a") == ["a-1", "a-2"]
    simulation.processes["gateway-2"].hangs = False
    simulation.run_until_settled()
    assert simulation.ready("a") == ["a-1", "a-2"]


def test_new_weights_are_compared_also_where_the_controller_was_started_again_meanwhile() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.update("a", "/weights/2.pt", simulation.now))
    saved = from_json(SavedFleet, json.loads(json.dumps(to_json(simulation.fleet.state.saved()))))
    fleet = Fleet(FleetState(simulation.fleet.state.graph, now=simulation.now))
    fleet.state.restore(saved, simulation.now)
    pids = {each.id: each.pid for each in saved.members}
    hello = {"event": "hello", "host": "10.0.0.0", "edges": []}
    new, old = (
        {**hello, "pid": pids[name] or 99, "state": state, "version": version}
        for name, state, version in (("a-2", "starting", 2), ("a-1", "ready", 1))
    )
    first = hear(fleet, "a-2", new, simulation.now)
    assert not [action for action in first if isinstance(action, Send) and order_of(action)["do"] == "load"]
    then = hear(fleet, "a-1", old, simulation.now)
    orders = [order_of(action) for action in then if isinstance(action, Send) and action.member == "a-2"]
    assert [(order["do"], order.get("canary")) for order in orders if order["do"] == "load"] == [("load", "a-1")]


def test_a_gateway_that_was_draining_goes_on_with_that_under_the_next_controller() -> None:
    simulation = settled(chain("a"))
    simulation.do(simulation.fleet.stop(simulation.now))
    fleet = Fleet(FleetState(simulation.fleet.state.graph, now=simulation.now))
    fleet.state.restore(
        from_json(SavedFleet, json.loads(json.dumps(to_json(simulation.fleet.state.saved())))), simulation.now
    )
    pid = fleet.state.members["gateway-1"].pid
    hear(fleet, "gateway-1", {"event": "hello", "pid": pid, "state": "draining", "edges": []}, simulation.now)
    assert fleet.state.members["gateway-1"].state is MemberState.DRAINING
    fleet.stop(simulation.now)
    assert fleet.state.members["gateway-1"].state is MemberState.DRAINING
    drained = hear(fleet, "gateway-1", {"event": "drained"}, simulation.now)
    assert send("gateway-1", {"do": "leave"}) in drained


def test_without_an_autoscaler_a_stage_without_replicas_is_not_ready() -> None:
    graph = Graph([Stage("a", "m:w", min_replicas=0)])
    for wakes in (False, True):
        fleet = Fleet(FleetState(graph, now=0.0, wakes=wakes))
        fleet.scale("a", 0, 0.0)
        assert bool(fleet.state.missing()) is not wakes
        assert fleet.state.has_come_up
