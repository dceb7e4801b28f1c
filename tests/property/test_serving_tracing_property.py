"""Whatever befalls a traced request, its spans are whole; whatever it went through, its versions are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.serving.flow.context import RequestContext
from multiworld.serving.graph import Graph, Stage
from multiworld.serving.ingress.versions import merged_weights, versions_of, with_version
from multiworld.serving.tracing.hops import Executed, Hops, merged
from multiworld.serving.tracing.spans import Journey, spans_of
from multiworld.serving.tracing.traceparent import parse_traceparent

STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.booleans(), st.booleans(), st.floats(0, 1)), max_size=12
)


@given(STEPS)
def test_each_attempt_has_one_span_and_none_ends_before_it_began(
    steps: list[tuple[str, int, bool, bool, float]],
) -> None:
    hops = Hops()
    now, sends = 100.0, set()
    for stage, number, is_executed, lives, took_s in steps:
        peer = f"{stage}-{number}"
        hops = hops.with_sent(stage, peer, at=now, attempt=1, holders=[peer] if lives else [])
        sends.add((stage, peer))
        now += took_s
        if is_executed:
            ended = now + took_s
            executed = Executed(by=peer, stage=stage, arrived=now, began=now, ended=ended, batch=1, version=1)
            hops = hops.with_hop(executed)
            now += took_s
    journey = Journey(
        pipeline="p", gateway="gateway-1", request_id="r", opened=100.0, ended=now, attempts=1, hops=hops.read()
    )
    root, below = spans_of(journey)
    assert sorted((span.name, span.attributes["multiworld.replica"]) for span in below) == sorted(sends)
    assert all(span.began <= span.ended for span in (root, *below))
    assert [span.began for span in below] == sorted(span.began for span in below)
    assert merged([hops, hops]) == merged([hops])


@given(st.text(max_size=60) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_any_header_is_a_parent_or_none(text: str) -> None:
    parent = parse_traceparent(text)
    assert parent is None or (parent.trace_id > 0 and parent.span_id > 0)


@given(*[st.integers(1, 3)] * 5)
def test_versions_are_those_that_the_parts_went_through(a1: int, a2: int, left: int, right: int, joins: int) -> None:
    """A rhombus whose branches may come of two executions of the first stage."""
    graph = Graph(
        [
            Stage("a", "m:w"),
            Stage("l", "m:w"),
            Stage("r", "m:w", inputs=("a",)),
            Stage("j", "m:w", inputs=("l", "r")),
        ]
    )
    parts = [
        (name, RequestContext(weights=with_version(with_version({}, "a", first), name, own)))
        for name, first, own in (("l", a1, left), ("r", a2, right))
    ]
    told = versions_of(graph, with_version(merged_weights(graph, parts), "j", joins))
    assert told == {"a": tuple(sorted({a1, a2})), "l": (left,), "r": (right,), "j": (joins,)}
