"""Nodes that also compute for others: everything once, in order, within the limits, and in what time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from multiworld.training.planning.changes.shared_steps import Place, SharedStep
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.operations import Kind
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import make_templates
from multiworld.training.planning.timing import Timing


def timing(size: int, rng: random.Random, latency_s: float = 0.0) -> Timing:
    layers = [
        LayerCost(name=str(index), forward_s=cost, backward_s=2 * cost, weight_backward_s=cost)
        for index, cost in enumerate(rng.uniform(0.8, 1.2) for _ in range(24))
    ]
    profile = Profile(model="test", micro_batch=1, layers=tuple(layers), latency_s=latency_s)
    templates = make_templates(profile, Node(), num_nodes=size)
    return Timing.of(profile, [Node()] * size, templates.template(size))


def step(timing: Timing, counts: Sequence[int], peers: dict[Place, list[int]], *, split: bool = False) -> SharedStep:
    limits = {
        (pipeline, stage): limit * (1 + sum(node == stage and pipeline in given for (_, node), given in peers.items()))
        for stage, limit in enumerate(timing.template.max_in_flight)
        for pipeline in range(len(counts))
    }
    return SharedStep(timing=timing, counts=dict(enumerate(counts)), peers=peers, limits=limits, split_backward=split)


@pytest.mark.parametrize("seed", range(20))
def test_pipelines_that_share_nothing_take_the_time_of_the_slowest(seed: int) -> None:
    rng = random.Random(seed)
    times = timing(rng.randint(1, 6), rng, rng.choice([0.0, 0.1]))
    counts = [rng.randint(1, 12) for _ in range(3)]
    simulated = step(times, counts, {}).iteration_s()
    assert simulated == pytest.approx(max(times.iteration_s(each) for each in counts))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_everything_is_computed_once_in_order_and_within_the_limits(seed: int, split: bool) -> None:
    rng = random.Random(seed)
    size = rng.randint(2, 5)
    counts = [rng.randint(1, 9) for _ in range(4)]
    peers = {(0, rng.randrange(size)): [rng.choice((1, 2, 3)) for _ in range(counts[0])]}
    peers[1, (min(peers)[1] + 1) % size] = [rng.choice((2, 3)) for _ in range(counts[1])]
    shared = step(timing(size, rng, 0.05), counts, peers, split=split)
    done = shared.simulated()
    assert shared.least_s() <= shared.iteration_s() + 1e-9
    kinds = list(Kind) if split else [Kind.FORWARD, Kind.BACKWARD]
    every = {
        (kind, pipeline, stage, micro_batch)
        for kind in kinds
        for pipeline, count in enumerate(counts)
        for stage in range(size)
        for micro_batch in range(count)
    }
    assert sorted(map(str, (each[:4] for place in done.values() for each in place))) == sorted(map(str, every))
    ends = {each[:4]: each.end_s for place in done.values() for each in place}
    for place, operations in done.items():
        in_flight = 0
        for before, after in pairwise(operations):
            assert before.end_s <= after.begin_s
        for kind, pipeline, stage, micro_batch, begin_s, _ in operations:
            assert shared.place_of(pipeline, stage, micro_batch) == place
            if kind is Kind.FORWARD and stage:
                assert ends[kind, pipeline, stage - 1, micro_batch] <= begin_s
            if kind is Kind.BACKWARD:
                source = (kind, pipeline, stage + 1, micro_batch)
                assert ends.get(source, ends[Kind.FORWARD, pipeline, stage, micro_batch]) <= begin_s
            in_flight += {Kind.FORWARD: 1, kinds[-1]: -1}.get(kind, 0)
            assert in_flight <= shared.limits[place[0], stage]


def test_gradients_of_weights_in_the_bubbles_make_rerouted_work_cheaper() -> None:
    """ReCycle: one of 4 x 4 nodes lost, 16 micro-batches each; its peers have a third more to do."""
    times = timing(4, random.Random(0))
    peers: dict[Place, list[int]] = {(0, 1): [1 + index % 3 for index in range(16)]}
    whole, split = (step(times, [16] * 4, peers, split=each).iteration_s() for each in (False, True))
    before = times.iteration_s(16)
    busy_s = 16 * 4 / 3 * (times.forward_s[1] + times.backward_s[1])
    assert busy_s <= split < whole
    assert split <= 1.06 * max(before, busy_s)
    assert replace(step(times, [16] * 4, peers), split_backward=True).iteration_s() == split
