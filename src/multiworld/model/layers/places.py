"""Chooses where a graph is cut into layers. Processes that follow the same model choose the same places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from ..boundaries import Boundary, Layout, maybe_viewed_by, written_by
from ..measuring import Measured
from ..part_graph import attribute


def sink_weights(graph: fx.Graph) -> None:
    """Move the nodes that get weights and buffers to their first uses, so that few of them are live at a time."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            if node.users:
                min(node.users, key=order.__getitem__).prepend(node)
            else:
                graph.erase_node(node)


def layout_of(module: fx.GraphModule) -> Layout:
    """Return the operations. What is computed of a trained weight is computed once: its gradient has one way back."""
    trained = {name for name, value in module.named_parameters(remove_duplicate=False) if value.requires_grad}
    return Layout(
        module.graph,
        {
            node
            for node in module.graph.nodes
            if node.op != "get_attr" and any(str(source.target) in trained for source in node.all_input_nodes)
        },
    )


def cuttable(
    layout: Layout, measured: Mapping[fx.Node, Measured], module: fx.GraphModule, changed: Collection[torch.Tensor]
) -> list[Boundary]:
    """Return the places where only tensors cross that no later operation writes into.

    A gradient could not flow back through a received tensor that is written into. ``changed``: buffers that forward
    changes; all uses of one of them stay together.
    """
    written = _written_from(layout)
    kept_together = _uses(layout, module, {id(value) for value in changed})
    found: list[Boundary] = []
    for end in range(1, len(layout.nodes) - 1):
        crossing = layout.crossing(end)
        if crossing is None or any(first < end <= last for first, last in kept_together):
            continue
        tensors, sizes = crossing
        if any(node.op == "get_attr" or measured[node].shape is None for node in tensors):
            continue
        if not any(written[node] >= end for node in tensors):
            found.append(Boundary(end, tensors, sizes, by_rows=False))
    return found


def _written_from(layout: Layout) -> Mapping[fx.Node, int]:
    """Return for each node the last operation that may write into its memory; -1 if none does."""
    memory: dict[fx.Node, set[fx.Node]] = {}  # the nodes whose memory a node's result may share
    last: Counter[fx.Node] = Counter()
    for index, node in enumerate(layout.nodes):
        may_view = node.all_input_nodes if node.op == "call_module" else maybe_viewed_by(node)
        memory[node] = {node}.union(*(memory[source] for source in may_view))
        for source in written_by(node):
            for root in memory[source]:
                last[root] = index
    return {node: max((last.get(root, -1) for root in roots), default=-1) for node, roots in memory.items()}


def _uses(layout: Layout, module: fx.GraphModule, buffers: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and the last operation that uses each of these buffers, which are given by their ids."""
    uses: dict[int, list[int]] = {}
    for node in layout.nodes:
        sources = (*node.all_input_nodes, *layout.needed_weights([node]))
        held = [attribute(module, str(source.target)) for source in sources if source.op == "get_attr"]
        if node.op == "call_module":
            held += module.get_submodule(str(node.target)).buffers()
        for value in held:
            if id(value) in buffers:
                uses.setdefault(id(value), []).append(layout.index[node])
    return [(min(each), max(each)) for each in uses.values()]


@dataclass(frozen=True)
class _Place:
    boundary: Boundary
    size_bytes: int
    ends_block: bool


def choose(
    layout: Layout,
    boundaries: Sequence[Boundary],
    measured: Mapping[fx.Node, Measured],
    module: fx.GraphModule,
    model: nn.Module,
) -> list[Boundary]:
    """Return the places to cut at: the ends of the repeated blocks, and where no more bytes cross inside of one.

    Each layer between them holds a trained weight, so no layer is without work.
    """
    blocks = _blocks(model)
    owner = [_block_of(_path(node), blocks) for node in layout.nodes]
    places = [_Place(each, each.size_bytes(measured), _changes(owner, each.end, layout)) for each in boundaries]
    return _with_work(_narrow(places), layout, _working(layout, module))


def _blocks(model: nn.Module) -> frozenset[str]:
    """Return the paths of the parts of the outermost lists and sequences; without any, the parts of the model."""
    lists = [path for path, part in model.named_modules() if isinstance(part, (nn.ModuleList, nn.Sequential))]
    outermost = [path for path in lists if not any(path.startswith(_below(other)) for other in lists if other != path)]
    found = [f"{_below(path)}{name}" for path in outermost for name, _ in model.get_submodule(path).named_children()]
    return frozenset(found or [name for name, _ in model.named_children()])


def _below(path: str) -> str:
    return f"{path}." if path else ""


def _block_of(path: str | None, blocks: Collection[str]) -> str | None:
    """Return the block that a path is in, an empty text for one outside of all blocks; None without a path."""
    if path is None:
        return None
    parts = path.split(".")
    return next((found for size in range(len(parts), 0, -1) if (found := ".".join(parts[:size])) in blocks), "")


def _path(node: fx.Node) -> str | None:
    """Return the path of the part of the model that an operation came from."""
    stack = node.meta.get("nn_module_stack")
    if not stack or node.op in ("get_attr", "placeholder"):
        return None
    return str(list(stack.values())[-1][0])


def _changes(owner: Sequence[str | None], end: int, layout: Layout) -> bool:
    """Return whether the operations before and after a place are in different blocks."""

    def is_told(place: int) -> bool:
        return owner[place] is not None and layout.nodes[place] not in layout.remade

    before = next((owner[place] for place in range(end - 1, -1, -1) if is_told(place)), None)
    after = next((owner[place] for place in range(end, len(owner)) if is_told(place)), None)
    return before is not None and after is not None and before != after


def _narrow(places: Sequence[_Place]) -> list[_Place]:
    """Leave out places inside of a block where more bytes cross than at the block's end."""
    limit = min((place.size_bytes for place in places), default=0)
    ends = [place.size_bytes for place in places if place.ends_block]
    limit = ends[-1] if ends else limit  # after the last block
    kept: list[_Place] = []
    for place in reversed(places):
        if place.ends_block:
            limit = place.size_bytes
        if place.ends_block or place.size_bytes <= limit:
            kept.append(place)
    return kept[::-1]


def _with_work(places: Sequence[_Place], layout: Layout, working: Collection[fx.Node]) -> list[Boundary]:
    """Leave out places so that each layer uses one of the weights: of two with no work between, the later one stays.

    The end of a block stays before the other.
    """
    work = [0]
    for node in layout.nodes:
        work.append(work[-1] + (node in working))
    kept: list[_Place] = []
    for place in places:
        if work[place.boundary.end] == (work[kept[-1].boundary.end] if kept else 0):
            if not kept or (kept[-1].ends_block and not place.ends_block):
                continue
            kept.pop()
        kept.append(place)
    while kept and work[kept[-1].boundary.end] == work[-1]:
        kept.pop()
    return [place.boundary for place in kept]


def _working(layout: Layout, module: fx.GraphModule) -> frozenset[fx.Node]:
    """Return the operations with trained weights of two dimensions or more, or with any if there are none such."""
    found: dict[fx.Node, int] = {}
    for node in layout.nodes:
        if node in layout.remade or node.op == "get_attr":
            continue
        sources = (*node.all_input_nodes, *layout.needed_weights([node]))
        held = [attribute(module, str(source.target)) for source in sources if source.op == "get_attr"]
        if node.op == "call_module":
            held += module.get_submodule(str(node.target)).parameters()
        dims = [value.dim() for value in held if isinstance(value, nn.Parameter) and value.requires_grad]
        if dims:
            found[node] = max(dims)
    return frozenset(node for node, dim in found.items() if dim > 1) or frozenset(found)
