"""Templates of pipelines: for each number of nodes, how to divide the layers, and what a step then takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..errors import LayerTooLargeError, ModelTooLargeError, TooFewNodesError
from .coverage import uncovered
from .nodes import Node
from .orders import in_flight
from .partition import bottlenecks, even_cuts
from .profile import Profile
from .segments import Segments
from .simulation import iteration_s
from .template import Schedule, Stage, Template


def make_templates(
    profile: Profile, node: Node, *, num_nodes: int, tolerate: int = 0, num_micro_batches: int | None = None
) -> Templates:
    """Return a template for each number of nodes that a pipeline may get out of ``num_nodes``.

    ``tolerate``: any so many nodes may be lost while a replica of each layer is left. ``num_micro_batches``: of a step
    of one pipeline, for which templates are chosen; None: four for each stage. Raises ModelTooLargeError or
    LayerTooLargeError (with the arithmetic) if these nodes cannot hold the model.
    """
    if num_nodes < 1 or tolerate < 0:
        raise ValueError(f"{num_nodes} nodes that tolerate {tolerate} losses: expected at least 1 and at least 0")
    smallest = _smallest(profile, node, num_nodes)
    largest = min(largest_size(smallest, num_nodes, tolerate), profile.num_layers)
    made = {}
    for size in range(smallest, largest + 1):
        template = _make(profile, node, size, num_micro_batches)
        if template is not None:
            made[size] = template
    return Templates(profile, node, made, tolerate=tolerate, num_nodes=num_nodes)


def largest_size(smallest: int, num_nodes: int, tolerate: int) -> int:
    """Return the largest pipeline beside ``tolerate`` smallest ones, or that of nodes that are too few for these."""
    return max(num_nodes - tolerate * smallest, min(2 * smallest - 1, num_nodes))


class Templates:
    """Those of one model on one kind of node. ``smallest``: how many nodes hold the model; ``sizes``: ascending."""

    def __init__(
        self, profile: Profile, node: Node, made: Mapping[int, Template], *, tolerate: int, num_nodes: int
    ) -> None:
        self.profile, self.node, self.tolerate, self.num_nodes = profile, node, tolerate, num_nodes
        self.sizes = tuple(sorted(made))
        self.smallest = self.sizes[0]
        self._made = dict(made)
        self._iteration_s: dict[tuple[int, int], float] = {}

    def __iter__(self) -> Iterator[Template]:
        return (self._made[size] for size in self.sizes)

    def template(self, size: int) -> Template:
        """Return the one of so many nodes. Raises TooFewNodesError, or ValueError for a size that there is not."""
        if size < self.smallest:
            raise TooFewNodesError(self.profile.model, size, self.smallest)
        if size not in self._made:
            raise ValueError(f"there is no template of {size} nodes: expected one of {self.sizes}")
        return self._made[size]

    def iteration_s(self, size: int, num_micro_batches: int) -> float:
        """Return what a step with so many micro-batches takes, exactly. More of them never take less."""
        key = (size, num_micro_batches)
        if key not in self._iteration_s:
            self._iteration_s[key] = iteration_of(self.profile, self.node, self.template(size), num_micro_batches)
        return self._iteration_s[key]

    @property
    def uncovered(self) -> tuple[int, ...]:
        """Counts of nodes that pipelines of these sizes cannot all use, or not with enough replicas; mostly none."""
        return uncovered(self.sizes, self.smallest, self.tolerate, self.num_nodes)


def iteration_of(profile: Profile, node: Node, template: Template, num_micro_batches: int) -> float:
    """Return what a step of this template takes."""
    segments = Segments.of(profile, node, recompute=template.recompute)
    first = np.array([each.first for each in template.stages])
    end = np.array([each.end for each in template.stages])
    return iteration_s(
        (segments.forward_s[end] - segments.forward_s[first]).tolist(),
        (segments.backward_s[end] - segments.backward_s[first]).tolist(),
        num_micro_batches,
        transfers_s=segments.transfer_s[first[1:]].tolist(),
        max_in_flight=template.max_in_flight,
        schedule=template.schedule,
    )


def _make(profile: Profile, node: Node, size: int, num_micro_batches: int | None) -> Template | None:
    """Return the template of so many nodes with as many micro-batches in flight as fit; None if one does not fit."""
    count = num_micro_batches or 4 * size
    for recompute in (False, True):
        segments = Segments.of(profile, node, recompute=recompute)
        for most in range(size, 0, -1):
            limits = in_flight(Schedule.ONE_F_ONE_B, size, count, [min(most, size - each) for each in range(size)])
            fits = [segments.fits(each) for each in reversed(limits)]
            work_s = segments.work_s()
            least = bottlenecks(work_s, fits)
            if np.isfinite(least[size, 0]):
                cuts = even_cuts(work_s, fits, least, size, least[size, 0])
                template = Template(
                    num_nodes=size,
                    stages=tuple(
                        Stage(first=first, end=end, node=index) for index, (first, end) in enumerate(pairwise(cuts))
                    ),
                    num_micro_batches=count,
                    iteration_s=0.0,
                    max_in_flight=limits,
                    recompute=recompute,
                )
                seconds = iteration_of(profile, node, template, count)
                return replace(template, iteration_s=seconds)
    return None


def _smallest(profile: Profile, node: Node, num_nodes: int) -> int:
    """Return how many nodes hold the model with one micro-batch in flight. Raises if there are fewer."""
    segments = Segments.of(profile, node)
    fits = segments.fits(1)
    for layer, each in enumerate(profile.layers):
        if not fits[layer, layer + 1]:
            needed = each.state_bytes + each.activation_bytes
            raise LayerTooLargeError(profile.model, each.name, needed, node.memory_bytes or 0)
    first, count = 0, 0
    while first < profile.num_layers:
        first, count = int(np.flatnonzero(fits[first])[-1]), count + 1
    if count > num_nodes:
        needed = int(segments.needed_bytes(0, profile.num_layers, 1))
        raise ModelTooLargeError(profile.model, needed, num_nodes, (node.memory_bytes or 0) * node.devices, count)
    return count
