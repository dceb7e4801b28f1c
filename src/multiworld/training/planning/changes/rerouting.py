"""Peers of a lost node take over its micro-batches, and the rest of its pipeline stays (ReCycle, Gandhi et al. 2024).

A peer is the same node of another pipeline of the same template: it has the same layers, so nothing is moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..in_flight import rooms_in_flight
from ..instantiation import divide_among
from ..plan import LOST, Pipeline, Plan, Reroute
from ..template import Schedule, Template
from ..template_set import TemplateSet
from ..timing import Timing
from .conditions import Conditions
from .shared_steps import Place, SharedStep


@dataclass(frozen=True, kw_only=True)
class Rerouted:
    """Pipelines with LOST in the places of lost members, who computes in their places, and what a step takes.

    ``shared``: for each template, the step of the pipelines that compute for each other. ``num_simulated``: how many
    operations were simulated to find this.
    """

    pipelines: tuple[Pipeline, ...]
    reroutes: tuple[Reroute, ...]
    iteration_s: float
    shared: tuple[SharedStep, ...]
    num_simulated: int = 0


def reroute(
    plan: Plan,
    lost: frozenset[str],
    templates: TemplateSet,
    conditions: Conditions,
    *,
    most_s: float = float("inf"),
) -> Rerouted | None:
    """Return the pipelines without these members, or None where none was lost, or one has no peer.

    ``most_s``: None also where a step is sure to take longer; then nothing is simulated.
    """
    pipelines = [
        replace(each, members=tuple(LOST if member in lost else member for member in each.members))
        for each in plan.pipelines
    ]
    pipelines = [each for each in pipelines if any(member != LOST for member in each.members)]
    is_whole = len(pipelines) == len(plan.pipelines) and not _gaps(pipelines)
    if is_whole or len(pipelines) > conditions.num_micro_batches or not _have_peers(pipelines):
        return None
    counts = {tuple(each.num_micro_batches for each in pipelines), _divided(pipelines, templates, conditions)}
    made = [
        found
        for each in sorted(counts)
        if sum(each) == conditions.num_micro_batches
        and (found := _rerouted(pipelines, each, templates, conditions, most_s)) is not None
    ]
    if not made:
        return None
    num_simulated = sum(step.num_operations for each in made for step in each.shared)
    return replace(min(made, key=lambda each: each.iteration_s), num_simulated=num_simulated)


def shared_steps(plan: Plan, templates: TemplateSet, *, split_backward: bool = False) -> list[SharedStep]:
    """Return a step for each template whose pipelines compute for each other. Keys are indices of pipelines."""
    peers = {(each.pipeline, each.node): each.peers for each in plan.reroutes}
    return list(_steps(plan.pipelines, peers, templates, split_backward=split_backward))


def _have_peers(pipelines: Sequence[Pipeline]) -> bool:
    return all(_peers_of(pipelines, index, node) for index, node in _gaps(pipelines))


def _gaps(pipelines: Sequence[Pipeline]) -> list[Place]:
    return [
        (index, node)
        for index, each in enumerate(pipelines)
        for node, member in enumerate(each.members)
        if member == LOST
    ]


def _peers_of(pipelines: Sequence[Pipeline], index: int, node: int) -> list[int]:
    """Return the pipelines of the same template that have this node."""
    template = pipelines[index].template
    return [peer for peer, each in enumerate(pipelines) if each.template == template and each.members[node] != LOST]


def _divided(pipelines: Sequence[Pipeline], templates: TemplateSet, conditions: Conditions) -> tuple[int, ...]:
    """Divide micro-batches as if a pipeline were slower by what its nodes compute for others of its template."""
    total = conditions.num_micro_batches
    stretches = {}
    for template, number in Counter(each.template for each in pipelines).items():
        gaps = Counter(node for index, node in _gaps(pipelines) if pipelines[index].template == template)
        stretches[template] = number / (number - max(gaps.values(), default=0))
    curves_s = []
    for each in pipelines:
        stretched = np.ceil(np.arange(total + 1) * stretches[each.template]).astype(int)
        curves_s.append(templates.iterations_s(each.template.num_nodes, int(stretched[-1]))[stretched])
    counts, _ = divide_among(np.array(curves_s), total)
    return counts


def _rerouted(
    pipelines: Sequence[Pipeline],
    counts: Sequence[int],
    templates: TemplateSet,
    conditions: Conditions,
    most_s: float,
) -> Rerouted | None:
    changed = [replace(each, num_micro_batches=count) for each, count in zip(pipelines, counts, strict=True)]
    peers = _shared_out(changed)
    steps = list(_steps(changed, peers, templates, split_backward=conditions.split_backward))
    if max((each.least_s() for each in steps), default=0.0) > most_s:
        return None
    shared = {index for step in steps for index in step.counts}
    alone_s = [
        float(templates.iterations_s(each.template.num_nodes, each.num_micro_batches)[each.num_micro_batches])
        for index, each in enumerate(changed)
        if index not in shared
    ]
    return Rerouted(
        pipelines=tuple(changed),
        reroutes=tuple(Reroute(pipeline=place[0], node=place[1], peers=each) for place, each in peers.items()),
        iteration_s=max([*alone_s, *(each.iteration_s() for each in steps)]),
        shared=tuple(steps),
    )


def _shared_out(pipelines: Sequence[Pipeline]) -> dict[Place, tuple[int, ...]]:
    """Give each micro-batch of each gap to the peer that has least to do until then, in proportion to its progress."""
    loads = {
        (index, node): float(each.num_micro_batches)
        for index, each in enumerate(pipelines)
        for node in range(each.template.num_nodes)
    }
    shared = {}
    for index, node in _gaps(pipelines):
        count, candidates = pipelines[index].num_micro_batches, _peers_of(pipelines, index, node)
        given = dict.fromkeys(candidates, 0)
        for _ in range(count):
            given[min(candidates, key=lambda each: (loads[each, node] + given[each], each))] += 1
        for peer, number in given.items():
            loads[peer, node] += number
        shared[index, node] = _spread(given)
    return shared


def _spread(given: Mapping[int, int]) -> tuple[int, ...]:
    """Return each key as often as it says, evenly spread."""
    turns = sorted(((turn + 0.5) / number, key) for key, number in given.items() for turn in range(number))
    return tuple(key for _, key in turns)


def _steps(
    pipelines: Sequence[Pipeline],
    peers: Mapping[Place, Sequence[int]],
    templates: TemplateSet,
    *,
    split_backward: bool,
) -> list[SharedStep]:
    groups: dict[Template, list[int]] = defaultdict(list)
    for index, each in enumerate(pipelines):
        groups[each.template].append(index)
    steps = []
    for template, group in groups.items():
        of_group = {place: each for place, each in peers.items() if place[0] in group}
        if not of_group:
            continue
        timing = Timing.of(templates.profile, [templates.node] * template.num_nodes, template)
        is_split = (split_backward and not template.recompute) or template.schedule is Schedule.ZERO_BUBBLE
        steps.append(
            SharedStep(
                timing=timing,
                counts={index: pipelines[index].num_micro_batches for index in group},
                peers=of_group,
                limits=_limits(template, group, of_group, templates, is_split=is_split),
                split_backward=is_split,
            )
        )
    return steps


def _limits(
    template: Template,
    group: Sequence[int],
    peers: Mapping[Place, Sequence[int]],
    templates: TemplateSet,
    *,
    is_split: bool,
) -> dict[tuple[int, int], int]:
    """Return how many micro-batches each stage may hold. A peer holds those of others, too, if they fit."""
    limits = {}
    rooms = rooms_in_flight(template, templates, is_split=is_split)
    for stage, (each, own, room) in enumerate(zip(template.stages, template.max_in_flight, rooms, strict=True)):
        for pipeline in group:
            others = sum(1 for (_, node), given in peers.items() if node == each.node and pipeline in given)
            limits[pipeline, stage] = min(own * (1 + others), room if is_split else max(own, room))
    return limits
