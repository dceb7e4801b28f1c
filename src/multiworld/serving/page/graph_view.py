"""Decide what is drawn of the graph: where each replica stands, and the course of each world between two. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..graph import GATEWAY
from .layout import SINK, SOURCE, Box, Drawing, draw
from .slots import Slots

__all__ = ["graph_view"]

Point = tuple[float, float]
Status = Mapping[str, Any]


def graph_view(status: Status, slots: Slots) -> dict[str, Any]:
    """Return, as JSON, two drawings (``wide`` and ``upright``), and the worlds with a course in each of them."""
    stages = status["stages"]
    upstream = {name: stage["upstream"] for name, stage in stages.items()}
    places = {name: len(slots.of(name)) for name in stages}
    drawings = {
        "wide": draw(upstream, places),
        "upright": draw(upstream, places, is_upright=True),
    }
    stage_of = {member["id"]: member["stage"] for member in (*status["replicas"], *status["gateways"])}
    boxes = {name: _member_boxes(drawing, slots, stages) for name, drawing in drawings.items()}
    edges = [edge for edge in status["edges"] if edge["from"] in stage_of and edge["to"] in stage_of]
    return {
        "drawings": {name: _drawing(drawing, boxes[name], slots, stages) for name, drawing in drawings.items()},
        "edges": [
            {
                "from": edge["from"],
                "to": edge["to"],
                "state": edge["state"],
                "error": edge["error"],
                **{name: _course(edge, drawing, boxes[name], stage_of) for name, drawing in drawings.items()},
            }
            for edge in edges
        ],
    }


def _member_boxes(drawing: Drawing, slots: Slots, stages: Mapping[str, Any]) -> dict[str, Box]:
    return {
        slot.member: box
        for stage in stages
        for slot, box in zip(slots.of(stage), drawing.places[stage], strict=True)
        if slot.member
    }


def _drawing(drawing: Drawing, members: Mapping[str, Box], slots: Slots, stages: Mapping[str, Any]) -> dict[str, Any]:
    empty = [
        [*_corners(box), slot.predecessor, slot.missed]
        for stage in stages
        for slot, box in zip(slots.of(stage), drawing.places[stage], strict=True)
        if not slot.member
    ]
    return {
        "width": round(drawing.width, 1),
        "height": round(drawing.height, 1),
        "nodes": {name: _corners(box) for name, box in drawing.nodes.items()},
        "members": {name: _corners(box) for name, box in members.items()},
        "empty": empty,
    }


def _corners(box: Box) -> list[float]:
    return [round(value, 1) for value in (box.x, box.y, box.width, box.height)]


def _course(edge: Mapping[str, Any], drawing: Drawing, boxes: Mapping[str, Box], stage_of: Mapping[str, str]) -> str:
    """Return the path of SVG that leads from one end to the other, round what it skips."""
    source, target = stage_of[edge["from"]], stage_of[edge["to"]]
    arrow = (SOURCE if source == GATEWAY else source, SINK if target == GATEWAY else target)
    start = _side(edge["from"], arrow[0], drawing, boxes, is_end=False)
    end = _side(edge["to"], arrow[1], drawing, boxes, is_end=True)
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
