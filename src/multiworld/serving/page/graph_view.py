"""Decide what is drawn of the graph: where each replica stands, and the course of each world between two. Pure.

A stage with many replicas is folded: these are chips, the worst first, and their worlds lead to the stage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..graph import GATEWAY
from .layout import SINK, SOURCE, Box, Drawing, draw, is_folded
from .slots import Slot, Slots

__all__ = ["graph_view"]

Point = tuple[float, float]
Status = Mapping[str, Any]


def graph_view(status: Status, slots: Slots, failing: Collection[str] = ()) -> dict[str, Any]:
    """Return, as JSON, two drawings (``wide`` and ``upright``), and the worlds with a course in each of them.

    ``failing``: replicas whose requests failed of late. Worlds of folded stages that have the same ends and state are
    one, with their ``count``.
    """
    stages = status["stages"]
    upstream = {name: stage["upstream"] for name, stage in stages.items()}
    arranged = _arranged(status, slots, failing)
    places = {name: len(those) for name, those in arranged.items()}
    drawings = {
        "wide": draw(upstream, places),
        "upright": draw(upstream, places, is_upright=True),
    }
    stage_of = {member["id"]: member["stage"] for member in (*status["replicas"], *status["gateways"])}
    boxes = {name: _member_boxes(drawing, arranged) for name, drawing in drawings.items()}
    edges = [edge for edge in status["edges"] if edge["from"] in stage_of and edge["to"] in stage_of]
    folded = {name for name, number in places.items() if is_folded(number)}
    return {
        "drawings": {name: _drawing(drawing, boxes[name], arranged) for name, drawing in drawings.items()},
        "edges": [
            {**edge, **{name: _course(edge, drawing, boxes[name], stage_of) for name, drawing in drawings.items()}}
            for edge in _joined(edges, stage_of, folded)
        ],
    }


def _arranged(status: Status, slots: Slots, failing: Collection[str]) -> dict[str, list[Slot]]:
    """Return the places of each stage: where nobody moves, or the worst first where there are many."""
    serving = {member["id"] for member in status["replicas"] if member["state"] == "ready" and member["open"]}

    def badness(slot: Slot) -> int:
        if not slot.member:
            return 0 if slot.missed else 3
        return 1 if slot.member in failing else 4 if slot.member in serving else 2

    arranged = {stage: slots.of(stage) for stage in status["stages"]}
    return {name: sorted(those, key=badness) if is_folded(len(those)) else those for name, those in arranged.items()}


def _joined(
    edges: Sequence[Mapping[str, Any]], stage_of: Mapping[str, str], folded: Collection[str]
) -> list[dict[str, Any]]:
    """Return one edge for all that have the same ends and state once those of folded stages end at the stage."""
    joined: dict[tuple[str, str, str], dict[str, Any]] = {}
    for edge in edges:
        ends = [stage_of[member] if stage_of[member] in folded else member for member in (edge["from"], edge["to"])]
        start = {"from": ends[0], "to": ends[1], "state": edge["state"], "error": "", "count": 0}
        one = joined.setdefault((ends[0], ends[1], edge["state"]), start)
        one["count"] += 1
        one["error"] = one["error"] or edge["error"]
    return sorted(joined.values(), key=lambda edge: edge["state"] == "broken")  # drawn over the others


def _member_boxes(drawing: Drawing, arranged: Mapping[str, Sequence[Slot]]) -> dict[str, Box]:
    return {
        slot.member: box
        for stage, slots in arranged.items()
        for slot, box in zip(slots, drawing.places[stage], strict=True)
        if slot.member
    }


def _drawing(drawing: Drawing, members: Mapping[str, Box], arranged: Mapping[str, Sequence[Slot]]) -> dict[str, Any]:
    empty = [
        [*_corners(box), slot.predecessor, slot.missed]
        for stage, slots in arranged.items()
        for slot, box in zip(slots, drawing.places[stage], strict=True)
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
    source, target = (stage_of.get(edge[end], edge[end]) for end in ("from", "to"))
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
