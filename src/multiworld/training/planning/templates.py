"""Templates of pipelines: for each number of nodes, how to divide the layers, and what a step then takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from ..errors import LayerTooLargeError, ModelTooLargeError, TooFewNodesError
from .arrays import Floats
from .coverage import uncovered
from .nodes import Node
from .profile import Profile
from .search.making import best_templates, layouts
from .search.segments import Segments
from .template import Schedule, Template
from .times.curve import curves_s
from .timing import Timing, pipelines_of


def make_templates(
    profile: Profile,
    node: Node,
    *,
    num_nodes: int,
    tolerate: int = 0,
    num_micro_batches: int | None = None,
    schedules: Collection[Schedule] = (Schedule.ONE_F_ONE_B,),
    refine: bool = True,
) -> Templates:
    """Return a template for each number of nodes that a pipeline may get out of ``num_nodes``.

    ``tolerate``: any so many nodes may be lost while a replica of each layer is left. ``num_micro_batches``: of a step
    of one pipeline, for which templates are chosen; None: four for each device. ``schedules``, ``refine``: as
    for ``best_templates``. Raises ModelTooLargeError or LayerTooLargeError (with the arithmetic) if these nodes cannot
    hold the model.
    """
    if num_nodes < 1 or tolerate < 0:
        raise ValueError(f"{num_nodes} nodes that tolerate {tolerate} losses: expected at least 1 and at least 0")
    smallest = _smallest(profile, node, num_nodes)
    largest = min(largest_size(smallest, num_nodes, tolerate), profile.num_layers)
    sizes = range(smallest, largest + 1)
    counts = [num_micro_batches or 4 * min(each * node.devices, profile.num_layers) for each in sizes]
    made = best_templates(profile, [node] * largest, sizes, counts, schedules=schedules, refine=refine)
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
        self._curves_s: dict[int, Floats] = {}

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
        return float(self.iterations_s(size, num_micro_batches)[num_micro_batches])

    def iterations_s(self, size: int, up_to: int) -> Floats:
        """Return what steps with 0, 1, ..., ``up_to`` micro-batches take (at least these), ascending."""
        self.template(size)
        if len(self._curves_s.get(size, ())) <= up_to:
            timing = Timing.of(self.profile, [self.node] * size, self.template(size))
            if timing.is_by_rounds:
                self._curves_s |= self._all_curves_s(max(64, up_to, 2 * len(self._curves_s.get(size, ()))))
            else:
                times_s = [0.0, *(timing.iteration_s(each) for each in range(1, up_to + 1))]
                self._curves_s[size] = np.maximum.accumulate(times_s)
        return self._curves_s[size]

    def _all_curves_s(self, up_to: int) -> dict[int, Floats]:
        """Return the curves of all templates that can be simulated together, from one pass over them."""
        timings = [Timing.of(self.profile, [self.node] * each.num_nodes, each) for each in self]
        times_s = curves_s(pipelines_of([each for each in timings if each.is_by_rounds]), up_to)
        made = [each.template.num_nodes for each in timings if each.is_by_rounds]
        return {size: times_s[:, column] for column, size in enumerate(made)}

    @property
    def uncovered(self) -> tuple[int, ...]:
        """Counts of nodes that pipelines of these sizes cannot all use, or not with enough replicas; mostly none."""
        return uncovered(self.sizes, self.smallest, self.tolerate, self.num_nodes)


def _smallest(profile: Profile, node: Node, num_nodes: int) -> int:
    """Return how many nodes hold the model with one micro-batch in flight. Raises if there are fewer."""
    memory_bytes = np.inf if node.memory_bytes is None else float(node.memory_bytes)
    needed = []
    for devices, per_node in layouts(profile, node.devices):
        num_stages = _stages_needed(Segments.of(profile, devices), memory_bytes)
        count = -(-num_stages // per_node) if num_stages else 0
        if 0 < count * per_node <= profile.num_layers:
            needed.append(count)
    if not needed:
        _refuse_layer(profile, node)
    smallest = min(needed)
    if smallest > num_nodes:
        whole = Segments.of(profile).needed_bytes(0, profile.num_layers, 1, recompute=False)
        raise ModelTooLargeError(
            profile.model, int(whole), num_nodes, (node.memory_bytes or 0) * node.devices, smallest
        )
    return smallest


def _stages_needed(segments: Segments, memory_bytes: float) -> int:
    """Return the least number of stages; 0 if a layer does not fit."""
    fits = segments.fits(1, memory_bytes, recompute=False)
    first, count = 0, 0
    while first < segments.num_layers:
        if not fits[first].any():
            return 0
        first, count = int(np.flatnonzero(fits[first])[-1]), count + 1
    return count


def _refuse_layer(profile: Profile, node: Node) -> None:
    """Raise LayerTooLargeError for the largest layer, on as many devices as was measured."""
    devices = max(devices for devices, _ in layouts(profile, node.devices))
    largest = max(profile.on(devices), key=lambda each: each.state_bytes + each.activation_bytes)
    raise LayerTooLargeError(
        profile.model, largest.name, largest.state_bytes + largest.activation_bytes, node.memory_bytes or 0
    )
