"""Templates of pipelines: for each number of nodes, how to divide the layers, and what a step then takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ..errors import TooFewNodesError
from .arrays import Floats
from .coverage import uncovered
from .nodes import Node
from .profile import Profile
from .room import model_too_large, smallest_pipeline
from .search.making import best_templates
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

    From n0, the least that holds the model, to 2 * n0 - 1 there are templates even where these are more than
    ``num_nodes``: so if more nodes come later, some pipelines use all of them (see ``coverage``).

    ``tolerate``: any so many nodes may be lost while a replica of each layer is left. ``num_micro_batches``: of a step
    of one pipeline, for which templates are chosen; None: four for each device. ``schedules``, ``refine``: as
    for ``best_templates``. Raises ModelTooLargeError or LayerTooLargeError (with the arithmetic) if these nodes cannot
    hold the model.
    """
    if num_nodes < 1 or tolerate < 0:
        raise ValueError(f"{num_nodes} nodes that tolerate {tolerate} losses: expected at least 1 and at least 0")
    smallest = smallest_pipeline(profile, node, num_nodes)
    largest = min(largest_size(smallest, num_nodes, tolerate), profile.num_layers)
    sizes = range(smallest, largest + 1)
    counts = [num_micro_batches or 4 * min(each * node.devices, profile.num_layers) for each in sizes]
    made = best_templates(profile, [node] * largest, sizes, counts, schedules=schedules, refine=refine)
    if not made:
        raise ValueError(f"no template of {[each.value for each in schedules]} fits: add {Schedule.ONE_F_ONE_B.value}")
    return Templates(profile, node, made, tolerate=tolerate, num_nodes=num_nodes)


def make_template(
    profile: Profile,
    nodes: Sequence[Node],
    *,
    num_micro_batches: int | None = None,
    schedules: Collection[Schedule] = (Schedule.ONE_F_ONE_B,),
    refine: bool = True,
) -> Template:
    """Return a template for exactly these nodes, in this order; they may be unequal.

    Slower nodes get less work, and nodes with less memory fewer bytes. Arguments and errors are those of
    ``make_templates``; ``ModelTooLargeError.smallest`` counts these nodes, and more like the one with the most memory.
    """
    count = num_micro_batches or 4 * min(sum(each.devices for each in nodes), profile.num_layers)
    size = len(nodes)
    if size > profile.num_layers:
        raise ValueError(f"{size} nodes cannot share {profile.num_layers} layers: expected at most one node for each")
    made = best_templates(profile, nodes, [size], [count], schedules=schedules, refine=refine)
    if size not in made:
        raise model_too_large(profile, nodes, _enough(profile, nodes))
    return made[size]


def _enough(profile: Profile, nodes: Sequence[Node]) -> int:
    """Return how many nodes would do, if we add some like the one with the most memory. Raises LayerTooLargeError."""
    largest = max(nodes, key=lambda each: (each.memory_bytes or 0) * each.devices)
    smallest_pipeline(profile, largest, profile.num_layers)
    for size in range(len(nodes) + 1, profile.num_layers + 1):
        more = [*nodes, *[largest] * (size - len(nodes))]
        if best_templates(profile, more, [size], [1], refine=False):
            return size
    return profile.num_layers


def faster(usual: Templates, other: Templates, *, least_gain: float) -> Templates:
    """Return the usual templates, but ``other``'s of those sizes whose steps take less by this part at least."""
    made = {each.num_nodes: each for each in usual}
    for each in other:
        if each.num_nodes in made and each.iteration_s <= (1 - least_gain) * made[each.num_nodes].iteration_s:
            made[each.num_nodes] = each
    return Templates(usual.profile, usual.node, made, tolerate=usual.tolerate, num_nodes=usual.num_nodes)


def largest_size(smallest: int, num_nodes: int, tolerate: int) -> int:
    """Return the largest pipeline beside ``tolerate`` smallest ones, or that with which any count can be reached."""
    return max(num_nodes - tolerate * smallest, 2 * smallest - 1)


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
        """Return what steps with 0, 1, ..., ``up_to`` micro-batches take (at least these), ascending.

        Interleaved templates with very many micro-batches go on as ``Timing.curve_s`` says.
        """
        template = self.template(size)
        if len(self._curves_s.get(size, ())) <= up_to:
            most = max(64, up_to, 2 * len(self._curves_s.get(size, ())))
            together = [each for each in self if each.schedule is not Schedule.INTERLEAVED]
            if template.schedule is Schedule.INTERLEAVED:
                self._curves_s[size] = self._timing(template).curve_s(up_to)
            else:
                times_s = curves_s(pipelines_of([self._timing(each) for each in together]), most)
                self._curves_s |= {each.num_nodes: times_s[:, column] for column, each in enumerate(together)}
        return self._curves_s[size]

    def _timing(self, template: Template) -> Timing:
        return Timing.of(self.profile, [self.node] * template.num_nodes, template)

    @property
    def uncovered(self) -> tuple[int, ...]:
        """Counts of nodes that pipelines of these sizes cannot all use, or not with enough replicas; mostly none."""
        return uncovered(self.sizes, self.smallest, self.tolerate, self.num_nodes)
