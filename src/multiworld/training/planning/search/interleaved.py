"""Interleaved templates: each node has several stages, from several places of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..arrays import Ints
from ..nodes import Node
from ..operations import Kind, Operation
from ..orders import orders
from ..profile import Profile
from ..template import Schedule, Stage, Template
from ..timing import Timing
from .candidates import Way
from .partitions import Partitions
from .places import Places
from .search import with_slack
from .segments import Segments

MOST_STAGES = 4  # on one node
LIMITS = 3


def best_interleaved(
    profile: Profile, nodes: Sequence[Node], count: int, *, devices: int, limit_s: float
) -> Template | None:
    """Return the fastest interleaved template that takes less than ``limit_s`` for ``count`` micro-batches.

    All stages of a node are on the same ``devices``. None if there is none, or it does not fit into memory. Partitions
    are balanced for all stages alike; the exact simulation decides among them.
    """
    best = None
    for per_node in range(2, min(MOST_STAGES, profile.num_layers // len(nodes)) + 1):
        num_stages = per_node * len(nodes)
        planned = orders(Schedule.INTERLEAVED, num_stages, count, num_ranks=len(nodes))
        held = [_held(order, num_stages) for order in planned]
        for cuts in _balanced(Segments.of(profile, devices), nodes, per_node):
            template = _template(cuts, len(nodes), devices, count, held)
            timing = Timing.of(profile, nodes, template)
            if count * _busiest_s(timing) < limit_s and _fits(profile, nodes, template, held):
                seconds = timing.iteration_s(count)
                if seconds < limit_s:
                    limit_s, best = seconds, replace(template, iteration_s=seconds)
    return best


def _balanced(segments: Segments, nodes: Sequence[Node], per_node: int) -> Iterator[tuple[int, ...]]:
    unlimited = [Node(each.devices, None, each.speed) for each in nodes]
    places = Places.of(unlimited * per_node)
    partitions = Partitions.of(segments, places, places.num_stages, Way(places.num_stages))
    found = with_slack(partitions, [places.num_stages], LIMITS)
    yield from sorted({tuple(each) for each in found.cuts.tolist()})


def _template(cuts: Sequence[int], num_nodes: int, devices: int, count: int, held: Sequence[Ints]) -> Template:
    return Template(
        num_nodes=num_nodes,
        stages=tuple(
            Stage(first=first, end=end, node=index % num_nodes, devices=devices)
            for index, (first, end) in enumerate(pairwise(cuts))
        ),
        num_micro_batches=count,
        iteration_s=0.0,
        max_in_flight=tuple(np.maximum(1, np.max([each.max(0) for each in held], axis=0)).tolist()),
        schedule=Schedule.INTERLEAVED,
    )


def _held(order: Sequence[Operation], num_stages: int) -> Ints:
    """Return how many micro-batches of each stage a rank holds after each operation, [num_operations, num_stages]."""
    changes = np.zeros((len(order), num_stages), np.int64)
    for index, (kind, stage, _) in enumerate(order):
        changes[index, stage] = 1 if kind is Kind.FORWARD else -1
    return np.cumsum(changes, axis=0)


def _fits(profile: Profile, nodes: Sequence[Node], template: Template, held: Sequence[Ints]) -> bool:
    layers = profile.on(template.stages[0].devices)
    activations, states = [], [0] * len(nodes)
    for stage in template.stages:
        activations.append(sum(each.activation_bytes for each in layers[stage.first : stage.end]))
        states[stage.node] += sum(each.state_bytes for each in layers[stage.first : stage.end])
    peaks = [state + int((each @ np.array(activations)).max()) for state, each in zip(states, held, strict=True)]
    return all(node.memory_bytes is None or peak <= node.memory_bytes for node, peak in zip(nodes, peaks, strict=True))


def _busiest_s(timing: Timing) -> float:
    """Return the work of the busiest node for one micro-batch."""
    work_s = [0.0] * timing.template.num_nodes
    for stage, forward_s, backward_s in zip(timing.template.stages, timing.forward_s, timing.backward_s, strict=True):
        work_s[stage.node] += forward_s + backward_s
    return max(work_s)
