"""The small parts around the fleet: back-off, placement, history, state file, the spec on its way, autoscaling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from multiworld.serving.control.autoscale import AT_ONCE, Autoscaling
from multiworld.serving.control.fleet.actions import HostJoined, HostLost
from multiworld.serving.control.fleet.crash_loop import CrashLoop
from multiworld.serving.control.fleet.members import Member, MemberState, member_id, parse_member
from multiworld.serving.control.fleet.placement import HostInfo, place
from multiworld.serving.control.fleet.saved import SavedFleet
from multiworld.serving.control.history import LENGTH, History
from multiworld.serving.control.scaling import ScalingPolicy
from multiworld.serving.control.spec import DeploymentSpec
from multiworld.serving.control.state_file import StateFile
from multiworld.serving.control.status import ControllerStatus, describe
from multiworld.serving.graph import Batch, Graph, Stage
from multiworld.serving.member.reports import ReplicaStatistics
from multiworld.serving.replica.executor import MAX_CONCURRENT
from multiworld.wire.messages import from_json, to_json
from tests.unit.serving.simulated_fleet import SimulatedFleet, chain, hear


def test_the_first_death_costs_no_delay_and_a_calm_minute_forgives() -> None:
    crash = CrashLoop()
    delays = []
    now = 0.0
    for _ in range(9):
        delays.append(crash.died_young(now=now))
        now = max(now, crash.not_before)
    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert crash.died_young(now=now + 50) == 30.0
    assert crash.died_young(now=now + 50 + 91) == 0.0


def test_replicas_that_die_together_count_once() -> None:
    crash = CrashLoop()
    assert [crash.died_young(now=1.0) for _ in range(4)] == [0.0, 0.5, 0.0, 0.0]


def test_names_of_members_are_taken_apart() -> None:
    assert parse_member(member_id("my.stage", 12)) == ("my.stage", 12)
    assert [parse_member(text) for text in ("a", "a-", "-1", "a-b", "a-²")] == [None, None, ("", 1), None, None]


def test_a_host_without_the_stage_comes_first_then_the_least_loaded() -> None:
    hosts = [HostInfo(name=name, address=name, capacity=capacity) for name, capacity in (("x", 1), ("y", 8), ("z", 8))]

    def member(number: int, stage: str, host: str) -> Member:
        return Member(id=member_id(stage, number), stage=stage, version=1, born=0.0, host=host)

    members = [member(1, "a", "y"), member(2, "b", "x"), member(3, "b", "z")]
    found = place("a", (), hosts, members)
    assert found is not None
    assert found.name == "z"
    hosts[2].failures["a"] = 1
    found = place("a", (), hosts, members)
    assert found is not None
    assert found.name == "x"
    hosts[2].live = False
    assert place("a", ("z",), hosts, members) is None


def test_a_replica_that_worked_has_not_died_young() -> None:
    member = Member(id="a-1", stage="a", version=1, born=0.0, state=MemberState.READY, ready_at=5.0)
    assert member.died_young(6.0)
    member.stats = ReplicaStatistics(done=50)
    assert not member.died_young(6.0)
    member.stats = None
    assert not member.died_young(16.0)


def test_history_is_bounded_and_numbered() -> None:
    history = History()
    for number in range(LENGTH + 5):
        history.add(HostLost(host=str(number)), at=float(number))
    assert history.num_seen == LENGTH + 5
    records = [to_json(each) for each in history.since(LENGTH + 3)]
    assert records == [
        {"number": LENGTH + 4, "kind": "HostLost", "at": LENGTH + 3.0, "host": str(LENGTH + 3)},
        {"number": LENGTH + 5, "kind": "HostLost", "at": LENGTH + 4.0, "host": str(LENGTH + 4)},
    ]
    assert history.add(HostJoined(host="h", address="::1"), at=7.0).at == 7.0


def test_the_state_file_is_private_whole_and_removed(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    assert file.read() is None
    state = SavedFleet(numbers={"a": 1}, epoch=1, ready=True, stages={}, members=())
    file.write(state)
    file.write(replace(state, numbers={"a": 2}))
    assert StateFile(file.path).read() == replace(state, numbers={"a": 2})
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.remove()
    file.remove()
    file.write(replace(state, numbers={"a": 3}))  # late news
    assert list(tmp_path.iterdir()) == []


def test_a_state_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(ValueError, match="does not hold"):
        StateFile(tmp_path / "state.json").read()


def test_a_spec_crosses_to_another_process_as_json(tmp_path: Path) -> None:
    graph = Graph(
        [
            Stage("a", print, max_replicas=3, batch=Batch(max_size=4, max_wait_s=0.5), hosts=("x",)),
            Stage("b", print, inputs=("a", "input"), replicas=2),
            Stage("c", print, batch=False),
        ]
    )
    spec = DeploymentSpec(
        name="n", job="j", token="t", folder=tmp_path, graph=graph, gateways=2, scaling=ScalingPolicy(up_after_s=3.0)
    )
    back = DeploymentSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert back.to_json() == spec.to_json()
    assert back.graph.upstream("b") == ("a", "gateway")
    assert (back.graph.stages["a"].most, back.graph.stages["a"].batch) == (3, Batch(max_size=4, max_wait_s=0.5))
    assert [stage.batch for stage in back.graph][1:] == [None, False]
    assert back.scaling == ScalingPolicy(up_after_s=3.0)


def test_the_state_of_a_fleet_crosses_as_json() -> None:
    simulation = SimulatedFleet(chain("a", "b", replicas=2))
    simulation.run_until_settled()
    simulation.do(simulation.fleet.update("a", "/w.pt", simulation.now))
    saved = simulation.fleet.state.saved()
    assert from_json(SavedFleet, json.loads(json.dumps(to_json(saved)))) == saved


def test_the_status_names_all_that_there_is() -> None:
    simulation = SimulatedFleet(chain("a", "b"))
    simulation.run_until_settled()
    known = describe(simulation.fleet.state, simulation.now)
    status = to_json(known)
    assert from_json(ControllerStatus, json.loads(json.dumps(status))) == known
    assert status["ready"]
    assert [each["id"] for each in status["replicas"]] == ["a-1", "b-1"]
    assert {(each["from"], each["to"], each["state"]) for each in status["edges"]} == {
        ("gateway-1", "a-1", "open"),
        ("a-1", "b-1", "open"),
        ("b-1", "gateway-1", "open"),
    }


def test_a_stage_whose_load_grows_is_scaled_out_and_left_alone_during_an_update() -> None:
    graph = Graph([Stage("a", "m:w", max_replicas=4)])
    simulation = SimulatedFleet(graph)
    simulation.run_until_settled()
    scaling = Autoscaling(graph, ScalingPolicy())
    done = 0

    def second() -> list[int]:
        nonlocal done
        done += 100
        stats = {"event": "stats", "arrived": done, "done": done, "busy_s": done * 0.02, "queue": 0}
        simulation.do(hear(simulation.fleet, "a-1", stats, simulation.now))
        gateway = {"event": "stats", "answered": done, "failed": 0, "refused": 0, "open": 0, "waiting": 0}
        simulation.do(hear(simulation.fleet, "gateway-1", gateway, simulation.now))
        simulation.run(1.0)
        return [decision.new for decision in scaling.decide(simulation.fleet.state, simulation.now)]

    simulation.do(simulation.fleet.update("a", "/w.pt", simulation.now, needs_verdict=True))
    assert [second() for _ in range(5)] == [[]] * 5
    simulation.do(simulation.fleet.judge("a", False, "no", simulation.now))
    simulation.run_until_settled()
    wanted = [new for _ in range(6) for new in second()]
    assert wanted[:1] == [3]  # 100/s of 20 ms each, at 70 %


def test_a_stage_without_replicas_gets_one_when_a_request_waits_behind_another_stage() -> None:
    graph = Graph([Stage("a", "m:a"), Stage("b", "m:b", min_replicas=0, max_replicas=2)])
    simulation = SimulatedFleet(graph)
    simulation.run_until_settled()
    scaling = Autoscaling(graph, ScalingPolicy())
    simulation.do(simulation.fleet.scale("b", 0, simulation.now))
    simulation.run(5.0)

    def wanted(open_requests: int) -> list[tuple[str, int]]:
        gateway = {"event": "stats", "answered": 0, "failed": 0, "refused": 0, "open": open_requests, "waiting": 0}
        simulation.do(hear(simulation.fleet, "gateway-1", gateway, simulation.now))
        simulation.run(1.0)
        return [(decision.stage, decision.new) for decision in scaling.decide(simulation.fleet.state, simulation.now)]

    assert wanted(0) == []
    simulation.do(simulation.fleet.update("b", "/w.pt", simulation.now, needs_verdict=True))
    assert wanted(0) == []
    assert wanted(1) == [("b", 1)], "also while new weights are tried"


def test_what_members_did_before_they_were_known_is_no_load_of_now() -> None:
    graph = Graph([Stage("a", "m:a", max_replicas=8)])
    simulation = SimulatedFleet(graph)
    simulation.run_until_settled()
    scaling = Autoscaling(graph, ScalingPolicy())

    def tell(**stats: float) -> None:
        simulation.do(hear(simulation.fleet, "gateway-1", {"event": "stats", **stats}, simulation.now))
        simulation.do(hear(simulation.fleet, "a-1", {"event": "stats", "arrived": 5, "done": 5}, simulation.now))

    for answered in (100_000, 100_001, 100_002):
        assert scaling.decide(simulation.fleet.state, simulation.now) == []
        tell(answered=answered)
        simulation.run(1)
    simulation.kill("gateway-1")
    simulation.run(1)
    assert simulation.fleet.state.members["gateway-1"].stats is None
    for answered in (100_010, 100_011, 100_012):
        assert scaling.decide(simulation.fleet.state, simulation.now) == []
        tell(answered=answered)
        simulation.run(1)


def test_long_work_is_activity_and_its_replicas_stay() -> None:
    graph = Graph([Stage("a", "m:a", replicas=3, min_replicas=0, max_replicas=4)])
    simulation = SimulatedFleet(graph)
    simulation.run_until_settled()
    scaling = Autoscaling(graph, ScalingPolicy(down_after_s=3, idle_after_s=10))

    def seconds(number: int, *busy: str) -> list[int]:
        wanted = []
        for _ in range(number):
            for name in ("a-1", "a-2", "a-3"):
                if name in simulation.fleet.state.members:
                    stats = {"in_flight": int(name in busy), "executing_s": 50.0 * (name in busy)}
                    simulation.do(hear(simulation.fleet, name, {"event": "stats", **stats}, simulation.now))
            gateway = {"event": "stats", "open": len(busy)}
            simulation.do(hear(simulation.fleet, "gateway-1", gateway, simulation.now))
            simulation.run(1)
            for decision in scaling.decide(simulation.fleet.state, simulation.now):
                wanted.append(decision.new)
                simulation.do(simulation.fleet.scale("a", decision.new, simulation.now))
        return wanted

    assert seconds(40, "a-1", "a-2") == [2], "two are at work, though nothing arrives"
    assert seconds(40, "a-1") == [1]
    assert seconds(40) == [0]


def test_replicas_that_each_wait_for_a_few_of_many_calls_are_not_all_kept() -> None:
    assert AT_ONCE == MAX_CONCURRENT
    graph = Graph([Stage("a", "m:a", replicas=3, max_replicas=4)])
    simulation = SimulatedFleet(graph)
    simulation.run_until_settled()
    scaling = Autoscaling(graph, ScalingPolicy(down_after_s=3))
    wanted = []
    for _ in range(20):
        for member in simulation.fleet.state.of_stage("a"):
            stats = {"in_flight": 8, "executing": 8, "executing_s": 1.5}
            simulation.do(hear(simulation.fleet, member.id, {"event": "stats", **stats}, simulation.now))
        simulation.do(hear(simulation.fleet, "gateway-1", {"event": "stats", "open": 24}, simulation.now))
        simulation.run(1)
        for decision in scaling.decide(simulation.fleet.state, simulation.now):
            wanted.append(decision.new)
            simulation.do(simulation.fleet.scale("a", decision.new, simulation.now))
    assert wanted == [2, 1]
