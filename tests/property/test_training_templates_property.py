"""Templates against exact simulation and brute force; orders of any pipeline can be executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.training.planning.nodes import Node
from multiworld.training.planning.operations import Kind, Operation
from multiworld.training.planning.orders import in_flight, orders
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.search.making import best_templates
from multiworld.training.planning.simulation import timeline
from multiworld.training.planning.template import Schedule, Stage, Template
from multiworld.training.planning.times.bounds import lower_bounds_s
from multiworld.training.planning.times.curve import curves_s
from multiworld.training.planning.times.rounds import iterations_s
from multiworld.training.planning.timing import Timing, pipelines_of

BOTH = (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE)
WAYS = ((Schedule.ONE_F_ONE_B, False), (Schedule.ONE_F_ONE_B, True), (Schedule.ZERO_BUBBLE, False))
seconds = st.floats(0.01, 3.0)


@st.composite
def timings(draw: st.DrawFn, max_stages: int = 7) -> Timing:
    """Return what the stages of a pipeline take, in 1F1B or ZB-H1, with a limit on micro-batches in flight."""
    num_stages = draw(st.integers(1, max_stages))
    at_most = draw(st.integers(1, num_stages))
    schedule = draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE]))
    ahead = [num_stages - each for each in range(num_stages)]
    template = Template(
        num_nodes=num_stages,
        stages=tuple(Stage(first=each, end=each + 1, node=each) for each in range(num_stages)),
        num_micro_batches=1,
        iteration_s=0.0,
        max_in_flight=tuple(at_most if schedule is Schedule.ZERO_BUBBLE else min(at_most, each) for each in ahead),
        schedule=schedule,
    )
    times = st.lists(seconds, min_size=num_stages, max_size=num_stages)
    backward_s = draw(times)
    parts = draw(st.lists(st.floats(0, 1), min_size=num_stages, max_size=num_stages))
    return Timing(
        template=template,
        forward_s=tuple(draw(times)),
        backward_s=tuple(backward_s),
        weight_backward_s=tuple(whole * part for whole, part in zip(backward_s, parts, strict=True)),
        transfers_s=tuple(draw(st.lists(st.floats(0, 1.0), min_size=num_stages - 1, max_size=num_stages - 1))),
    )


@given(st.lists(timings(), min_size=1, max_size=4), st.integers(1, 24))
def test_rounds_and_curves_are_the_simulation_and_the_bound_is_never_above(several: list[Timing], count: int) -> None:
    exact = pytest.approx([each.iteration_s(count) for each in several], rel=1e-9)
    pipelines, counts = pipelines_of(several), np.full(len(several), count)
    assert iterations_s(pipelines, counts).tolist() == exact
    assert curves_s(pipelines, count)[count].tolist() == exact
    assert (lower_bounds_s(pipelines, counts) <= iterations_s(pipelines, counts) * (1 + 1e-9)).all()


@given(st.lists(timings(), min_size=1, max_size=3))
def test_more_micro_batches_never_take_less(several: list[Timing]) -> None:
    assert (np.diff(curves_s(pipelines_of(several), 40), axis=0) > -1e-9).all()


@settings(max_examples=20)
@given(timings(max_stages=5), st.integers(30, 300))
def test_a_curve_goes_on_exactly_once_it_is_steady(timing: Timing, count: int) -> None:
    curve_s = curves_s(pipelines_of([timing]), count)
    assert curve_s[count, 0] == pytest.approx(timing.iteration_s(count), rel=1e-8)


@given(
    st.sampled_from(Schedule),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 14),
    st.lists(st.integers(1, 6), min_size=6, max_size=6),
    st.booleans(),
)
def test_orders_can_be_executed_and_keep_their_limits(
    schedule: Schedule, num_ranks: int, chunks: int, count: int, limits: list[int], is_limited: bool
) -> None:
    num_stages = num_ranks * chunks if schedule is Schedule.INTERLEAVED else num_ranks
    given_limits = limits[:num_stages] if is_limited and schedule is not Schedule.INTERLEAVED else None
    planned = orders(schedule, num_stages, count, max_in_flight=given_limits, num_ranks=num_ranks)
    kinds = list(Kind) if schedule is Schedule.ZERO_BUBBLE else [Kind.FORWARD, Kind.BACKWARD]
    assert Counter(each for order in planned for each in order) == {
        Operation(kind, stage, micro_batch): 1
        for kind in kinds
        for stage in range(num_stages)
        for micro_batch in range(count)
    }
    timed = timeline(
        [1.0] * num_stages,
        [2.0] * num_stages,
        count,
        max_in_flight=given_limits,
        schedule=schedule,
        num_ranks=num_ranks,
    )
    assert len(timed) == sum(map(len, planned))
    if schedule is not Schedule.INTERLEAVED:
        allowed = in_flight(schedule, num_stages, count, given_limits)
        assert all(held(order, kinds[-1]) <= limit for order, limit in zip(planned, allowed, strict=True))


def held(order: Sequence[Operation], last: Kind) -> int:
    """Return how many micro-batches a stage holds, at most."""
    now = most = 0
    for each in order:
        now += {Kind.FORWARD: 1, last: -1}.get(each.kind, 0)
        most = max(most, now)
    return most


@st.composite
def cases(draw: st.DrawFn) -> tuple[Profile, Node, int, int]:
    """Return a profile, a node, a number of nodes and of micro-batches. Few of them fit easily, some do not at all."""
    num_layers = draw(st.integers(2, 7))
    layer = st.builds(
        LayerCost,
        name=st.just("layer"),
        forward_s=seconds,
        backward_s=st.floats(0.5, 3.0),
        weight_backward_s=st.floats(0.1, 0.5),
        state_bytes=st.integers(50, 150),
        activation_bytes=st.integers(5, 60),
        output_bytes=st.integers(1, 9),
    )
    layers = draw(st.lists(layer, min_size=num_layers, max_size=num_layers))
    profile = Profile(model="m", micro_batch=1, layers=tuple(layers), latency_s=draw(st.sampled_from([0.0, 0.1])))
    num_nodes = draw(st.integers(1, min(num_layers, 5)))
    share = sum(each.state_bytes for each in layers) / num_nodes
    memory_bytes = draw(st.none() | st.floats(0.7, 2.5).map(lambda factor: int(share * factor) + 40))
    return profile, Node(memory_bytes=memory_bytes), num_nodes, draw(st.integers(1, 12))


@given(cases())
def test_templates_are_as_good_as_the_best_that_brute_force_finds(case: tuple[Profile, Node, int, int]) -> None:
    profile, node, num_nodes, count = case
    made = best_templates(profile, [node] * num_nodes, [num_nodes], [count], schedules=BOTH).get(num_nodes)
    best_s = brute_force_s(profile, node, num_nodes, count)
    assert (made is None) == (best_s is None)
    if made is not None:
        assert made.iteration_s == pytest.approx(best_s, rel=1e-8)
        assert Timing.of(profile, [node] * num_nodes, made).iteration_s(count) == pytest.approx(best_s, rel=1e-8)
        assert fits(profile, node, made, count)


def brute_force_s(profile: Profile, node: Node, num_nodes: int, count: int) -> float | None:
    found = []
    for inner in combinations(range(1, profile.num_layers), num_nodes - 1):
        for at_most in range(1, num_nodes + 1):
            for schedule, recompute in WAYS:
                template = template_of((0, *inner, profile.num_layers), at_most, schedule, recompute, count)
                if fits(profile, node, template, count):
                    found.append(Timing.of(profile, [node] * num_nodes, template).iteration_s(count))
    return min(found, default=None)


def template_of(cuts: Sequence[int], at_most: int, schedule: Schedule, recompute: bool, count: int) -> Template:
    stages = tuple(Stage(first=first, end=end, node=node) for node, (first, end) in enumerate(pairwise(cuts)))
    return Template(
        num_nodes=len(stages),
        stages=stages,
        num_micro_batches=count,
        iteration_s=0.0,
        max_in_flight=tuple(
            at_most if schedule is Schedule.ZERO_BUBBLE else min(at_most, len(stages) - each)
            for each in range(len(stages))
        ),
        schedule=schedule,
        recompute=recompute,
    )


def fits(profile: Profile, node: Node, template: Template, count: int) -> bool:
    for stage, limit in zip(template.stages, template.max_in_flight, strict=True):
        layers = profile.layers[stage.first : stage.end]
        activations = sum(each.activation_bytes for each in layers)
        needed = sum(each.state_bytes for each in layers)
        if template.recompute:
            needed += activations + profile.layers[max(0, stage.first - 1)].output_bytes * min(limit, count)
        else:
            needed += activations * min(limit, count)
        if node.memory_bytes is not None and needed > node.memory_bytes:
            return False
    return True
