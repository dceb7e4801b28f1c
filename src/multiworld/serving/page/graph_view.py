"""Decide what is drawn of the graph: where each replica stands, and the course of each world between two. Pure.

A stage with many replicas is folded: these are chips, the worst first, and their worlds lead to the stage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from ..control.status import ControllerStatus, EdgeStatus
from ..graph import GATEWAY
from .layout import SINK, SOURCE, Box, Drawing, draw, is_folded
from .slots import Slot, Slots

Point = tuple[float, float]
Corners = tuple[float, float, float, float]


class EmptyPlace(NamedTuple):
    """Where nobody is: x, y, width, height, and who was there."""

    x: float
    y: float
    width: float
    height: float
    predecessor: str
    missed: bool


@dataclass(frozen=True, kw_only=True)
class DrawingView:
    """What is drawn of stages (``nodes``) and replicas (``members``): x, y, width, height."""

    width: float
    height: float
    nodes: Mapping[str, Corners]
    members: Mapping[str, Corners]
    empty: tuple[EmptyPlace, ...]


@dataclass(frozen=True, kw_only=True)
class World:
    """A world between two members, or ``count`` of them, with its course in each drawing, as a path of SVG."""

    start: str = field(metadata={"json": "from"})
    end: str = field(metadata={"json": "to"})
    state: str
    error: str
    count: int
    wide: str = ""
    upright: str = ""


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """Two drawings (``wide`` and ``upright``), and the worlds with a course in each of them."""

    drawings: Mapping[str, DrawingView]
    edges: tuple[World, ...]


def graph_view(status: ControllerStatus, slots: Slots, failing: Collection[str] = ()) -> GraphView:
    """Return what is drawn; ``failing``: replicas whose requests failed of late.

    Worlds of folded stages that have the same ends and state are one.
    """
    upstream = {name: stage.upstream for name, stage in status.stages.items()}
    arranged = _arranged(status, slots, failing)
    places = {name: len(those) for name, those in arranged.items()}
    wide, upright = draw(upstream, places), draw(upstream, places, is_upright=True)
    boxes, boxes_upright = _member_boxes(wide, arranged), _member_boxes(upright, arranged)
    stage_of = {member.id: member.stage for member in status.members}
    edges = [edge for edge in status.edges if edge.upstream in stage_of and edge.downstream in stage_of]
    folded = {name for name, number in places.items() if is_folded(number)}
    return GraphView(
        drawings={"wide": _drawing(wide, boxes, arranged), "upright": _drawing(upright, boxes_upright, arranged)},
        edges=tuple(
            replace(
                world,
                wide=_course(world, wide, boxes, stage_of),
                upright=_course(world, upright, boxes_upright, stage_of),
            )
            for world in _joined(edges, stage_of, folded)
        ),
    )


def _arranged(status: ControllerStatus, slots: Slots, failing: Collection[str]) -> dict[str, list[Slot]]:
    """Return the places of each stage: where nobody moves, or the worst first where there are many."""
    serving = {member.id for member in status.replicas if member.state == "ready" and member.open}

    def badness(slot: Slot) -> int:
        if not slot.member:
            return 0 if slot.missed else 3
        return 1 if slot.member in failing else 4 if slot.member in serving else 2

    arranged = {stage: slots.of(stage) for stage in status.stages}
    return {name: sorted(those, key=badness) if is_folded(len(those)) else those for name, those in arranged.items()}


def _joined(edges: Sequence[EdgeStatus], stage_of: Mapping[str, str], folded: Collection[str]) -> list[World]:
    """Return one world for all that have the same ends and state once those of folded stages end at the stage."""
    joined: dict[tuple[str, str, str], World] = {}
    for edge in edges:
        start, end = (
            stage_of[member] if stage_of[member] in folded else member for member in (edge.upstream, edge.downstream)
        )
        key = (start, end, edge.state)
        one = joined.get(key, World(start=start, end=end, state=edge.state, error="", count=0))
        joined[key] = replace(one, count=one.count + 1, error=one.error or edge.error)
    return sorted(joined.values(), key=lambda world: world.state == "broken")  # drawn over the others


def _member_boxes(drawing: Drawing, arranged: Mapping[str, Sequence[Slot]]) -> dict[str, Box]:
    return {slot.member: box for slot, box in _placed(drawing, arranged) if slot.member}


def _placed(drawing: Drawing, arranged: Mapping[str, Sequence[Slot]]) -> list[tuple[Slot, Box]]:
    return [pair for stage, slots in arranged.items() for pair in zip(slots, drawing.places[stage], strict=True)]


def _drawing(drawing: Drawing, members: Mapping[str, Box], arranged: Mapping[str, Sequence[Slot]]) -> DrawingView:
    return DrawingView(
        width=round(drawing.width, 1),
        height=round(drawing.height, 1),
        nodes={name: _corners(box) for name, box in drawing.nodes.items()},
        members={name: _corners(box) for name, box in members.items()},
        empty=tuple(
            EmptyPlace(*_corners(box), slot.predecessor, slot.missed)
            for slot, box in _placed(drawing, arranged)
            if not slot.member
        ),
    )


def _corners(box: Box) -> Corners:
    return round(box.x, 1), round(box.y, 1), round(box.width, 1), round(box.height, 1)


def _course(world: World, drawing: Drawing, boxes: Mapping[str, Box], stage_of: Mapping[str, str]) -> str:
    """Return the path of SVG that leads from one end to the other, round what it skips."""
    source, target = (stage_of.get(end, end) for end in (world.start, world.end))
    arrow = (SOURCE if source == GATEWAY else source, SINK if target == GATEWAY else target)
    start = _side(world.start, arrow[0], drawing, boxes, is_end=False)
    end = _side(world.end, arrow[1], drawing, boxes, is_end=True)
    return _curve([start, *drawing.lanes.get(arrow, ()), end], drawing.is_upright)


def _side(member: str, node: str, drawing: Drawing, boxes: Mapping[str, Box], *, is_end: bool) -> Point:
    """Return where a world begins or ends. Upright, boxes stand below each other, so each has a column of its own."""
    box = boxes.get(member, drawing.nodes[node])
    if drawing.is_upright:
        places = drawing.places.get(node, ())
        column = (places.index(box) + 1) / (len(places) + 1) if box in places else 0.5
        return box.x + box.width * column, box.y if is_end else box.y + box.height
    return box.x if is_end else box.x + box.width, box.y + box.height / 2


def _curve(points: Sequence[Point], is_upright: bool) -> str:
    """Bend between layers, and go straight through lanes."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for index, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        if index % 2:  # through a lane
            parts.append(f"L{x1:.1f} {y1:.1f}")
        elif is_upright:
            middle = (y0 + y1) / 2
            parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
        else:
            middle = (x0 + x1) / 2
            parts.append(f"C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}")
    return "".join(parts)
