"""Decide where the stages of a pipeline are drawn: in layers, without overlaps, edges round what they skip. Pure.

Layers are by longest path; an edge that skips layers gets a narrow lane in each of them (Sugiyama and others, 1981),
and the order inside a layer follows the median of the neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..graph import GATEWAY

SOURCE, SINK = "gateway:in", "gateway:out"
"""Where requests come in, and answers go out: the gateways, drawn twice. No stage has a colon in its name."""
BOX_W, BOX_H, BOX_GAP = 158.0, 76.0, 8.0
MOST_BOXES = 6  # replicas of a stage; more are drawn as chips
CHIPS_IN_ROW, CHIP_H, CHIP_GAP = 4, 22.0, 6.0
HEAD_H, PAD = 44.0, 8.0
LANE = 18.0
NODE_GAP, LAYER_GAP = 14.0, 64.0
END_W, END_H = 92.0, 64.0
MARGIN = 4.0
SWEEPS = 4


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Where everything is. ``places``: by stage, the boxes of its replicas from the first place on.

    ``lanes``: by (from, to), which are stages, SOURCE or SINK, the points through which what skips layers passes.
    """

    width: float
    height: float
    is_upright: bool
    nodes: Mapping[str, Box]
    places: Mapping[str, Sequence[Box]]
    lanes: Mapping[tuple[str, str], Sequence[tuple[float, float]]]


Lane = tuple[str, str, int]
Node = str | Lane


def draw(upstream: Mapping[str, Sequence[str]], num_places: Mapping[str, int], *, is_upright: bool = False) -> Drawing:
    """Lay out a graph: ``upstream`` names, for each stage in topological order, whose outputs it takes.

    ``is_upright``: layers below each other, for narrow pages; else beside each other.
    """
    arrows = _arrows(upstream)
    layer_of = _layers(upstream)
    layers = _ordered(_with_lanes(arrows, layer_of), arrows, layer_of)
    return _placed(layers, arrows, layer_of, num_places, is_upright)


def _arrows(upstream: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    arrows = [(SOURCE if source == GATEWAY else source, stage) for stage in upstream for source in upstream[stage]]
    feeding = {source for source, _ in arrows}
    return arrows + [(stage, SINK) for stage in upstream if stage not in feeding]


def _layers(upstream: Mapping[str, Sequence[str]]) -> dict[str, int]:
    layers = {SOURCE: 0, GATEWAY: 0}
    for stage, sources in upstream.items():
        layers[stage] = 1 + max((layers[source] for source in sources), default=0)
    layers[SINK] = 1 + max(layers.values())
    del layers[GATEWAY]
    return layers


def _with_lanes(arrows: Sequence[tuple[str, str]], layer_of: Mapping[str, int]) -> list[list[Node]]:
    layers: list[list[Node]] = [[] for _ in range(layer_of[SINK] + 1)]
    for name, layer in layer_of.items():
        layers[layer].append(name)
    for source, target in arrows:
        for layer in range(layer_of[source] + 1, layer_of[target]):
            layers[layer].append((source, target, layer))
    return layers


def _ordered(
    layers: list[list[Node]], arrows: Sequence[tuple[str, str]], layer_of: Mapping[str, int]
) -> list[list[Node]]:
    before, after = _neighbours(arrows, layer_of)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        numbers = range(1, len(layers)) if forward else range(len(layers) - 2, -1, -1)
        for number in numbers:
            beside = layers[number - 1 if forward else number + 1]
            rank = {node: (index + 0.5) / len(beside) for index, node in enumerate(beside)}
            near = before if forward else after
            own = {node: (index + 0.5) / len(layers[number]) for index, node in enumerate(layers[number])}
            layers[number].sort(key=lambda node: _mean([rank[each] for each in near[node]], own[node]))
    return layers


def _neighbours(
    arrows: Sequence[tuple[str, str]], layer_of: Mapping[str, int]
) -> tuple[dict[Node, list[Node]], dict[Node, list[Node]]]:
    before: dict[Node, list[Node]] = {name: [] for name in layer_of}
    after: dict[Node, list[Node]] = {name: [] for name in layer_of}
    for source, target in arrows:
        path: list[Node] = [source]
        path += [(source, target, layer) for layer in range(layer_of[source] + 1, layer_of[target])]
        path.append(target)
        for left, right in pairwise(path):
            after.setdefault(left, []).append(right)
            before.setdefault(right, []).append(left)
    return before, after


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _placed(
    layers: Sequence[Sequence[Node]],
    arrows: Sequence[tuple[str, str]],
    layer_of: Mapping[str, int],
    num_places: Mapping[str, int],
    is_upright: bool,
) -> Drawing:
    """``along`` is the direction of the flow, ``across`` the other one."""
    sizes = {node: _size(node, num_places, is_upright) for layer in layers for node in layer}
    thickness = [max(_along(sizes[node], is_upright) for node in layer) for layer in layers]
    spans = [sum(_across(sizes[node], is_upright) for node in layer) + NODE_GAP * (len(layer) - 1) for layer in layers]
    breadth = max(spans)
    boxes: dict[Node, Box] = {}
    along = MARGIN
    for layer, thick, span in zip(layers, thickness, spans, strict=True):
        across = MARGIN + (breadth - span) / 2
        for node in layer:
            width, height = sizes[node]
            at = along + (thick - _along((width, height), is_upright)) / 2
            x, y = (across, at) if is_upright else (at, across)
            boxes[node] = Box(x=x, y=y, width=width, height=height)
            across += _across((width, height), is_upright) + NODE_GAP
        along += thick + (LAYER_GAP * 0.7 if is_upright else LAYER_GAP)
    total = sum(thickness) + (len(layers) - 1) * (LAYER_GAP * 0.7 if is_upright else LAYER_GAP)
    width, height = (breadth, total) if is_upright else (total, breadth)
    nodes = {node: box for node, box in boxes.items() if isinstance(node, str)}
    return Drawing(
        width=width + 2 * MARGIN,
        height=height + 2 * MARGIN,
        is_upright=is_upright,
        nodes=nodes,
        places={name: _inside(nodes[name], num_places.get(name, 0)) for name in layer_of if name not in (SOURCE, SINK)},
        lanes={arrow: _points(arrow, boxes, layer_of, is_upright) for arrow in arrows},
    )


def _along(size: tuple[float, float], is_upright: bool) -> float:
    return size[1] if is_upright else size[0]


def _across(size: tuple[float, float], is_upright: bool) -> float:
    return size[0] if is_upright else size[1]


def _size(node: Node, num_places: Mapping[str, int], is_upright: bool) -> tuple[float, float]:
    """Return width and height."""
    if not isinstance(node, str):
        return (LANE, 1.0) if is_upright else (1.0, LANE)
    if node in (SOURCE, SINK):
        return (BOX_W + 2 * PAD if is_upright else END_W), END_H
    places = max(1, num_places.get(node, 0))
    rows, row_h, gap = places, BOX_H, BOX_GAP
    if is_folded(places):
        rows, row_h, gap = -(-places // CHIPS_IN_ROW), CHIP_H, CHIP_GAP
    return BOX_W + 2 * PAD, HEAD_H + rows * (row_h + gap) + PAD - gap


def is_folded(num_places: int) -> bool:
    """Return whether the replicas of a stage are drawn as chips, as there are too many for boxes."""
    return num_places > MOST_BOXES


def _inside(node: Box, num_places: int) -> list[Box]:
    if is_folded(num_places):
        width = (BOX_W - (CHIPS_IN_ROW - 1) * CHIP_GAP) / CHIPS_IN_ROW
        return [
            Box(
                x=node.x + PAD + index % CHIPS_IN_ROW * (width + CHIP_GAP),
                y=node.y + HEAD_H + index // CHIPS_IN_ROW * (CHIP_H + CHIP_GAP),
                width=width,
                height=CHIP_H,
            )
            for index in range(num_places)
        ]
    return [
        Box(x=node.x + PAD, y=node.y + HEAD_H + index * (BOX_H + BOX_GAP), width=BOX_W, height=BOX_H)
        for index in range(num_places)
    ]


def _points(
    arrow: tuple[str, str], boxes: Mapping[Node, Box], layer_of: Mapping[str, int], is_upright: bool
) -> list[tuple[float, float]]:
    """Return two points for each lane: where it enters the layer, and where it leaves it."""
    points: list[tuple[float, float]] = []
    for layer in range(layer_of[arrow[0]] + 1, layer_of[arrow[1]]):
        lane = boxes[(arrow[0], arrow[1], layer)]
        middle = lane.x + lane.width / 2, lane.y + lane.height / 2
        others = [box for node, box in boxes.items() if isinstance(node, str) and layer_of[node] == layer]
        reach = max((_along((box.width, box.height), is_upright) for box in others), default=0.0) / 2
        points += [
            (middle[0], middle[1] + side) if is_upright else (middle[0] + side, middle[1]) for side in (-reach, reach)
        ]
    return points
