"""How many replicas an autoscaler gives to which load."""

import math
import random

import pytest

from multiworld.serving.control.scaling import Autoscaler, ScaleDecision, ScalingPolicy
from multiworld.serving.graph import GATEWAY, Graph, Stage
from tests.unit.scaling_trace import ScalingTrace, simulate


def chain(most: int = 10, fewest: int | None = None, replicas: int = 1) -> Graph:
    return Graph(
        [
            Stage("embed", abs, replicas=replicas, min_replicas=fewest, max_replicas=most),
            Stage("blocks", abs, replicas=replicas, min_replicas=fewest, max_replicas=most),
        ]
    )


SERVICE = {"embed": 0.01, "blocks": 0.05}


def watch(scaler: Autoscaler, now: float, *, rate: int, queue: int = 0, live: dict[str, int] | None = None) -> None:
    """One second of a pipeline in which everything that arrives is served."""
    scaler.observe(GATEWAY, now=now, arrived=rate, busy_s=0, done=rate, queue=0, live=1)
    for name, service_s in SERVICE.items():
        alive = (live or scaler.wanted)[name]
        scaler.observe(name, now=now, arrived=rate, busy_s=rate * service_s, done=rate, queue=queue, live=alive)


def run(scaler: Autoscaler, seconds: range, *, rate: int, queue: int = 0) -> list[tuple[int, ScaleDecision]]:
    decisions = []
    for second in seconds:
        watch(scaler, second, rate=rate, queue=queue)
        decisions += [(second, decision) for decision in scaler.decide(second)]
    return decisions


def step(low: float, high: float, at_s: float = 20, end_s: float = 120) -> list[float]:
    return [(low if tick * 0.1 < at_s else high) * 0.1 for tick in range(int(end_s * 10))]


def changes(trace: ScalingTrace, stage: str) -> int:
    return sum(decision.stage == stage for _, decision in trace.decisions)


def test_all_stages_grow_in_one_decision_and_the_reason_shows_the_arithmetic() -> None:
    scaler = Autoscaler(chain())
    decisions = run(scaler, range(6), rate=100)
    first = min(second for second, _ in decisions)
    assert {(decision.stage, decision.old, decision.new) for second, decision in decisions if second == first} == {
        ("embed", 1, 2),
        ("blocks", 1, 5),
    }
    assert scaler.wanted == {"embed": 2, "blocks": 8}
    last = decisions[-1][1]
    assert last.reason == ("needs (100/s + 0 waiting / 5 s) * 50 ms / 0.7 = 7.14 replicas for 1 s, between 1 and 10")


def test_a_stage_behind_a_bottleneck_is_sized_for_what_will_come() -> None:
    scaler = Autoscaler(chain())
    for second in range(4):
        scaler.observe(GATEWAY, now=second, arrived=100, busy_s=0, done=0, queue=0, live=1)
        scaler.observe("embed", now=second, arrived=20, busy_s=1.0, done=20, queue=0, live=1)
        scaler.observe("blocks", now=second, arrived=20, busy_s=1.0, done=20, queue=0, live=1)
        scaler.decide(second)
    assert scaler.wanted["blocks"] > 2, "100 requests/s arrive at the gateway, though only 20 come through"


def test_growing_waits_until_the_need_has_held() -> None:
    scaler = Autoscaler(chain(), ScalingPolicy(up_after_s=3.0, window_s=1.0))
    watch(scaler, 0, rate=5)
    assert scaler.decide(0) == []
    for second, rate in ((1, 100), (2, 100), (3, 5), (4, 100), (5, 100), (6, 100)):
        watch(scaler, second, rate=rate)
        assert scaler.decide(second) == []
    watch(scaler, 7, rate=100)
    assert [decision.stage for decision in scaler.decide(7)] == ["embed", "blocks"]


def test_shrinking_takes_the_highest_need_of_the_last_while_one_step_at_a_time() -> None:
    policy = ScalingPolicy(down_after_s=20, max_step_down=1)
    scaler = Autoscaler(chain(replicas=5), policy)
    decisions = run(scaler, range(60), rate=20)
    blocks = [(second, decision.old, decision.new) for second, decision in decisions if decision.stage == "blocks"]
    assert blocks == [(20, 5, 4), (22, 4, 3), (24, 3, 2)]


def test_a_replica_that_is_being_replaced_is_no_reason_to_grow() -> None:
    scaler = Autoscaler(chain(replicas=2))
    run(scaler, range(10), rate=20)
    for second in range(10, 14):
        watch(scaler, second, rate=20, queue=200, live={"embed": 2, "blocks": 1})
        assert [decision for decision in scaler.decide(second) if decision.stage == "blocks"] == []


def test_what_waits_is_drained_in_time() -> None:
    scaler = Autoscaler(chain(replicas=2))
    run(scaler, range(4), rate=20, queue=100)
    assert scaler.wanted["blocks"] == math.ceil((20 + 200 / 5) * 0.05 / 0.7)


def test_idle_stages_go_to_none_and_the_first_request_wakes_them() -> None:
    scaler = Autoscaler(chain(fewest=0), ScalingPolicy(down_after_s=5, idle_after_s=30))
    run(scaler, range(10), rate=5)
    run(scaler, range(10, 35), rate=0)
    assert scaler.wanted == {"embed": 1, "blocks": 1}, "not idle for long enough"
    run(scaler, range(35, 45), rate=0)
    assert scaler.wanted == {"embed": 0, "blocks": 0}
    assert {(decision.stage, decision.new) for decision in scaler.wake(now=50)} == {("embed", 1), ("blocks", 1)}
    assert scaler.wake(now=50) == []


def test_who_does_not_report_is_not_taken_for_idle() -> None:
    scaler = Autoscaler(chain(replicas=5), ScalingPolicy(down_after_s=10))
    run(scaler, range(5), rate=100)
    before = scaler.wanted
    for second in range(5, 60):
        assert scaler.decide(second + 10) == []
    assert scaler.wanted == before


def test_somebody_elses_decision_is_kept_for_a_while() -> None:
    scaler = Autoscaler(chain(), ScalingPolicy(down_after_s=10))
    run(scaler, range(20), rate=5)
    scaler.set("blocks", 4, now=20)
    assert run(scaler, range(20, 30), rate=5) == []
    assert scaler.wanted["blocks"] == 4
    assert run(scaler, range(30, 32), rate=5) != []


def test_a_step_of_load_is_answered_once_and_the_queue_drains() -> None:
    trace = simulate(chain(), ScalingPolicy(), step(10, 100), SERVICE)
    assert trace.live["blocks"][-1] == 8
    assert changes(trace, "blocks") <= 5
    assert changes(trace, "embed") == 1
    recovered = next(at for at, live in zip(trace.times, trace.live["blocks"], strict=True) if live >= 8)
    assert recovered <= 20 + 10
    assert trace.unanswered < 1
    assert trace.wait_s(0.5) < 0.5
    assert trace.wait_s(0.99) < 3.0


def test_a_burst_does_not_leave_the_pipeline_large() -> None:
    arrivals = step(10, 10, end_s=180)
    arrivals[300] += 300
    trace = simulate(chain(), ScalingPolicy(), arrivals, SERVICE)
    assert max(trace.live["blocks"]) > 1
    assert trace.live["blocks"][-1] == 1
    assert trace.unanswered < 1
    assert changes(trace, "blocks") <= 2 * max(trace.live["blocks"])


def test_a_day_is_followed_up_and_down() -> None:
    period = 600.0
    arrivals = [(60 - 50 * math.cos(2 * math.pi * tick * 0.1 / period)) * 0.1 for tick in range(12000)]
    trace = simulate(chain(), ScalingPolicy(), arrivals, SERVICE)
    assert max(trace.live["blocks"]) >= math.ceil(110 * 0.05 / 0.7)
    assert min(trace.live["blocks"][3000:]) <= 2
    assert changes(trace, "blocks") <= 2 * 2 * (max(trace.live["blocks"]) + 1), "each step up and down once a day"
    assert trace.wait_s(0.99) <= 1.0


def test_noise_causes_no_flapping() -> None:
    rng = random.Random(5)
    # 42 requests/s need exactly three replicas, the edge of a step, which is where noise would move it.
    arrivals = [float(sum(rng.random() < 0.042 for _ in range(100))) for _ in range(6000)]
    trace = simulate(chain(replicas=3), ScalingPolicy(), arrivals, SERVICE)
    assert changes(trace, "blocks") <= 6
    assert trace.unanswered < 50


def test_losses_change_nothing() -> None:
    losses = [(20.0 * number, "blocks") for number in range(1, 10)]
    trace = simulate(chain(replicas=4), ScalingPolicy(), step(45, 45, end_s=200), SERVICE, losses=losses)
    assert changes(trace, "blocks") == 0
    assert trace.wait_s(0.99) < 1.0


def test_a_sleeping_pipeline_wakes_in_the_simulation() -> None:
    arrivals = [0.0] * 1500 + [1.0] * 100
    trace = simulate(chain(fewest=0), ScalingPolicy(down_after_s=5), arrivals, SERVICE)
    assert trace.live["blocks"][1400] == 0
    assert trace.live["blocks"][-1] >= 1
    assert any("no replica" in decision.reason for _, decision in trace.decisions)


@pytest.mark.parametrize(
    "wrong", [{"target_utilization": 0}, {"drain_s": 0}, {"down_after_s": -1}, {"max_step_up": 0}, {"slack": -0.1}]
)
def test_a_policy_refuses_what_cannot_work(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ScalingPolicy(**wrong)  # type: ignore[arg-type]
