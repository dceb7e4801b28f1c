"""Graphs of all shapes are drawn without overlaps, and edges pass round the stages that they skip."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from multiworld.serving.page.layout import SINK, SOURCE, Box, Drawing, draw


@st.composite
def graphs(drawn: st.DrawFn) -> dict[str, list[str]]:
    """Stages in topological order, each with what it takes."""
    upstream: dict[str, list[str]] = {}
    for index in range(drawn(st.integers(1, 9))):
        sources = ["gateway", *upstream]
        taken = drawn(st.lists(st.sampled_from(sources), min_size=1, max_size=3, unique=True))
        upstream[f"s{index}"] = taken if index else ["gateway"]
    return upstream


def inside(inner: Box, outer: Box) -> bool:
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.width <= outer.x + outer.width
        and inner.y + inner.height <= outer.y + outer.height
    )


def check_boxes(drawing: Drawing) -> None:
    page = Box(x=0.0, y=0.0, width=drawing.width, height=drawing.height)
    for one, other in combinations(drawing.nodes.values(), 2):
        assert not one.overlaps(other)
    for stage, places in drawing.places.items():
        assert inside(drawing.nodes[stage], page)
        assert all(inside(place, drawing.nodes[stage]) for place in places)
        assert not any(one.overlaps(other) for one, other in combinations(places, 2))


def check_flow(drawing: Drawing, upstream: dict[str, list[str]]) -> None:
    def along(box: Box) -> float:
        return box.y if drawing.is_upright else box.x

    for stage, sources in upstream.items():
        for source in sources:
            assert along(drawing.nodes[SOURCE if source == "gateway" else source]) < along(drawing.nodes[stage])
        assert along(drawing.nodes[stage]) < along(drawing.nodes[SINK])


def check_lanes(drawing: Drawing) -> None:
    for points in drawing.lanes.values():
        for (x0, y0), (x1, y1) in list(pairwise(points))[::2]:
            lane = Box(x=min(x0, x1), y=min(y0, y1), width=abs(x1 - x0), height=abs(y1 - y0))
            assert not any(lane.overlaps(box) for box in drawing.nodes.values())


@given(upstream=graphs(), data=st.data(), is_upright=st.booleans())
def test_nothing_overlaps(upstream: dict[str, list[str]], data: st.DataObject, is_upright: bool) -> None:
    num_places = {stage: data.draw(st.integers(0, 5)) for stage in upstream}
    drawing = draw(upstream, num_places, is_upright=is_upright)
    assert {stage: len(places) for stage, places in drawing.places.items()} == num_places
    check_boxes(drawing)
    check_flow(drawing, upstream)
    check_lanes(drawing)


def test_a_chain_is_a_straight_line() -> None:
    drawing = draw({"a": ["gateway"], "b": ["a"], "c": ["b"]}, {"a": 1, "b": 1, "c": 1})
    assert len({box.y + box.height / 2 for box in drawing.nodes.values()}) == 1
    assert all(points == [] for points in drawing.lanes.values())


def test_a_skip_has_a_lane_in_each_layer_that_it_skips() -> None:
    drawing = draw({"a": ["gateway"], "b": ["a"], "c": ["a", "b"]}, {"a": 1, "b": 1, "c": 1})
    assert [len(drawing.lanes[arrow]) for arrow in (("a", "b"), ("b", "c"), ("a", "c"))] == [0, 0, 2]
