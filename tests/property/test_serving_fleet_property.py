"""Whatever happens and is ordered, in any order: the fleet comes to what is wanted, and never does what it must not.

The simulation itself checks at each step that no number is used twice, that no edge is opened before both its ends are
connected, and that the last ready replica of a stage is never drained.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multiworld.serving.control.fleet.actions import ReplicaLost
from multiworld.serving.errors import ServingError
from multiworld.serving.graph import INPUT, Graph, Stage
from tests.unit.serving.simulated_fleet import SimulatedFleet, chain

RHOMBUS = Graph(
    [
        Stage("a", "m:w"),
        Stage("b", "m:w", replicas=2),
        Stage("c", "m:w"),
        Stage("d", "m:w", inputs=("b", "c", INPUT)),
    ]
)
GRAPHS = (chain("a"), chain("a", "b", replicas=2), RHOMBUS)
FAULTS = ("kill", "hang", "break", "controller", "host", "stop host")
ORDERS = ("scale", "drain", "shrink", "update", "bad update", "judge")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(FAULTS + ORDERS),
        st.integers(0, 31),
        st.integers(1, 4),
        st.sampled_from((0.0, 0.05, 0.1, 0.3, 1.0, 4.0)),
    ),
    max_size=14,
)


def apply(simulation: SimulatedFleet, what: str, which: int, count: int) -> None:
    fleet, now = simulation.fleet, simulation.now
    processes = sorted(simulation.processes)
    process = processes[which % len(processes)] if processes else None
    stages = list(fleet.state.plans)
    stage = stages[which % len(stages)]
    if what == "kill" and process:
        simulation.kill(process)
    elif what == "hang" and process:
        simulation.hang(process)
    elif what == "break":
        edges = sorted(fleet.state.wiring.edges)
        if edges:
            simulation.break_edge(*edges[which % len(edges)])
    elif what == "controller":
        simulation.restart_controller()
    elif what == "host":
        simulation.do(fleet.host_lost("host-1", now))
        running = {each.member: each.pid for each in simulation.processes.values() if each.host == "host-1"}
        simulation.do(simulation.fleet.host_joined("host-1", "10.0.0.1", 8, running, now))
    elif what == "stop host":
        simulation.stop_host("host-1", after_s=0.1 * count)
        simulation.do(fleet.host_joined("host-1", "10.0.0.1", 8, {}, simulation.now))
    elif what == "scale":
        simulation.do(fleet.scale(stage, count, now))
    elif what in ("update", "bad update"):
        version = fleet.state.plans[stage].last_version + 1
        if what == "bad update":
            simulation.bad_versions.add((stage, version))
        simulation.do(fleet.update(stage, "/w.pt", now, parallel=count % 2 == 0, needs_verdict=count == 3))
    elif what == "judge":
        simulation.do(fleet.judge(stage, count % 2 == 0, "seen", now))
    elif process:
        simulation.do(fleet.drain(process, now, scale_down=what == "shrink"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(GRAPHS), STEPS)
def test_any_faults_and_orders_end_in_what_is_wanted(graph: Graph, steps: list[tuple[str, int, int, float]]) -> None:
    simulation = SimulatedFleet(graph)
    for what, which, count, pause_s in steps:
        with suppress(ServingError):  # an order that is refused changes nothing
            apply(simulation, what, which, count)
        simulation.run(pause_s)
    for stage, plan in simulation.fleet.state.plans.items():
        if plan.rollout is not None:
            simulation.do(simulation.fleet.judge(stage, True, "", simulation.now))
    simulation.run_until_settled(120.0)
    fleet = simulation.fleet
    for stage, plan in fleet.state.plans.items():
        assert len(simulation.ready(stage)) == plan.desired
        assert {member.version for member in fleet.state.of_stage(stage)} == {plan.version}
    assert set(simulation.processes) == set(fleet.state.members)
    assert simulation.open_edges() == {(edge.upstream, edge.downstream) for edge in fleet.state.wiring.edges.values()}
    lost = {event.member for event in simulation.events if isinstance(event, ReplicaLost)}
    assert {member for member in lost if not member.startswith("gateway")} <= set(simulation.killed)
