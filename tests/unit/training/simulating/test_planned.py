"""A replay over plans uses the planner's pipelines and recoveries."""

from __future__ import annotations

import random

import pytest

from multiworld.training.planning.changes.conditions import Conditions, Policy
from multiworld.training.planning.changes.reconfiguration import start
from multiworld.training.planning.instantiation import instantiate
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.templates import Templates, make_templates
from multiworld.training.planning.uniform import uniform_profile
from multiworld.training.simulating.planned import POLICIES, Planned, Restarted
from multiworld.training.simulating.replay import replay
from multiworld.training.simulating.trace import JOIN, LOSS, Event, Trace, drawn_trace, trace_of

NODES = [f"n{number}" for number in range(8)]
CONDITIONS = Conditions(tolerate=1, num_micro_batches=32, form_s=1.0, bytes_per_s=1e6, expected_s=600.0)


@pytest.fixture(scope="module")
def templates() -> Templates:
    """Two nodes hold the model."""
    profile = uniform_profile(12, layer_bytes=1000)
    return make_templates(profile, Node(memory_bytes=12 * 4000 * 6 // 10), num_nodes=8, tolerate=1)


def losing(*lost: str, at_s: float = 100.0, nodes: int = 8) -> Trace:
    events = [Event(at_s=0.0, kind=JOIN, node=node) for node in NODES[:nodes]]
    return trace_of("t", events + [Event(at_s=at_s, kind=LOSS, node=node) for node in lost], end_s=500.0)


def rate(templates: Templates, nodes: int) -> float:
    return 32 / instantiate(templates, nodes, tolerate=1, num_micro_batches=32).iteration_s


def test_the_rates_are_those_of_the_planned_pipelines(templates: Templates) -> None:
    only = Planned(templates, CONDITIONS, policy=Policy.REINSTANTIATE, restore_s=60.0)
    found = replay(losing("n3"), only)
    assert found.spans[0].rate == pytest.approx(rate(templates, 8))
    assert found.spans[-1].rate == pytest.approx(rate(templates, 7))
    assert 1.0 <= found.paused_s < 1.1  # and what is moved, some kilobytes
    assert only.num_chosen == {Policy.REINSTANTIATE: 1}


def test_the_best_policy_is_not_behind_any_other(templates: Templates) -> None:
    trace = drawn_trace("t", NODES, mean_s=120.0, end_s=3000.0, uniform=random.Random(5).random, back_after_s=300.0)
    samples = {
        policy: replay(trace, Planned(templates, CONDITIONS, policy=policy, restore_s=60.0)).num_samples
        for policy in (None, *POLICIES)
    }
    assert samples[None] >= 0.98 * max(samples.values())
    assert samples[None] > replay(trace, Restarted(templates, CONDITIONS, restart_s=60.0)).num_samples


def test_a_layer_that_is_lost_everywhere_comes_from_the_checkpoint(templates: Templates) -> None:
    first = start(NODES[:5], templates, CONDITIONS).plan
    owners = first.owners(0)
    found = replay(losing(*owners, nodes=5), Planned(templates, CONDITIONS, restore_s=60.0), checkpoint_every=10_000)
    assert found.paused_s == pytest.approx(61.0)
    assert found.num_steps * 32 < rate(templates, 5) * 400  # the first 100 s are lost
    assert found.redone_s == pytest.approx(100.0)


def test_a_model_that_no_longer_fits_waits(templates: Templates) -> None:
    found = replay(losing(*NODES[1:]), Planned(templates, CONDITIONS, restore_s=60.0))
    assert found.stopped_s == pytest.approx(400.0)


def test_too_few_nodes_wait_and_begin_again_when_others_come(templates: Templates) -> None:
    events = [Event(at_s=0.0, kind=JOIN, node=node) for node in NODES[:2]]
    events += [Event(at_s=100.0, kind=LOSS, node="n0"), Event(at_s=200.0, kind=JOIN, node="n5")]
    found = replay(trace_of("t", events, end_s=400.0), Planned(templates, CONDITIONS, restore_s=60.0))
    assert found.stopped_s == pytest.approx(100.0)
    assert found.paused_s == pytest.approx(61.0)
    assert found.spans[-1].rate == pytest.approx(rate(templates, 2))


def test_a_restart_costs_its_pause_at_each_change(templates: Templates) -> None:
    found = replay(losing("n3"), Restarted(templates, CONDITIONS, restart_s=45.0))
    assert found.paused_s == 45.0
    assert found.spans[-1].rate == pytest.approx(rate(templates, 7))
