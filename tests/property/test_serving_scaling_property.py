"""Whatever the load, an autoscaler keeps its bounds, its step limits and its temper."""

from hypothesis import given
from hypothesis import strategies as st

from multiworld.serving.control.scaling import Autoscaler, ScalingPolicy
from multiworld.serving.graph import GATEWAY, Graph, Stage
from tests.unit.scaling_trace import simulate

seconds = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 1000), st.integers(0, 6), st.floats(0, 30)), max_size=60
)


@given(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4), st.integers(1, 3), seconds)
def test_bounds_and_steps_hold_for_any_observations(
    fewest: int, more: int, most: int, step: int, seconds: list[tuple[int, int, int, float]]
) -> None:
    replicas = max(fewest + more, 1)
    stages = [
        Stage(name, abs, replicas=replicas, min_replicas=fewest, max_replicas=replicas + most) for name in ("a", "b")
    ]
    policy = ScalingPolicy(max_step_up=step, max_step_down=step, down_after_s=4, idle_after_s=6)
    scaler = Autoscaler(Graph(stages), policy)
    changed = dict.fromkeys(("a", "b"), -1e9)
    for now, (arrived, queue, live, busy_s) in enumerate(seconds):
        scaler.observe(GATEWAY, now=now, arrived=arrived, busy_s=0, done=0, queue=queue // 10, live=1)
        for name in ("a", "b"):
            scaler.observe(name, now=now, arrived=arrived, busy_s=busy_s, done=arrived, queue=queue, live=live)
        before = scaler.wanted
        decisions = scaler.decide(now)
        assert len({decision.stage for decision in decisions}) == len(decisions)
        for decision in decisions:
            assert decision.old == before[decision.stage] != decision.new == scaler.wanted[decision.stage]
            assert fewest <= decision.new <= replicas + most
            assert abs(decision.new - decision.old) <= step
            assert decision.old == 0 or now - changed[decision.stage] >= policy.settle_s
            changed[decision.stage] = now


@given(st.floats(1, 100), st.floats(0.002, 0.1))
def test_a_constant_load_ends_in_the_smallest_sufficient_number_and_stays(rate: float, service_s: float) -> None:
    graph = Graph([Stage("a", abs, replicas=1, max_replicas=20)])
    trace = simulate(graph, ScalingPolicy(down_after_s=10), [rate * 0.1] * 1200, {"a": service_s})
    needed = rate * service_s / 0.7
    assert needed - 0.3 <= trace.live["a"][-1] <= needed * 1.1 + 1.5
    assert all(at < 100 for at, _ in trace.decisions)
    assert trace.unanswered <= rate
