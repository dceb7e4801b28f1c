"""Stages and the graph that they make: what is refused when it is made, and who feeds whom."""

from __future__ import annotations

from typing import Any

import pytest

from multiworld.serving.graph import GATEWAY, INPUT, Batch, Graph, Stage


def work(x: Any) -> Any:
    return x


def test_a_chain_is_what_stages_make_that_say_nothing_else() -> None:
    graph = Graph([Stage("a", work), Stage("b", work), Stage("c", work)])
    assert graph.order == ("a", "b", "c")
    assert graph.inputs("a") == (INPUT,)
    assert graph.upstream("b") == ("a",)
    assert graph.downstream(GATEWAY) == ("a",)
    assert graph.downstream("c") == (GATEWAY,)
    assert graph.outputs == ("c",)


def test_branches_join_and_skips_come_from_the_gateway() -> None:
    graph = Graph(
        [
            Stage("join", work, inputs=("left", "right", INPUT)),
            Stage("left", work, inputs=(INPUT,)),
            Stage("right", work, inputs=("left",)),
        ]
    )
    assert graph.order == ("left", "right", "join")
    assert graph.upstream("join") == ("left", "right", GATEWAY)
    assert graph.downstream("left") == ("join", "right")
    assert set(graph.downstream(GATEWAY)) == {"join", "left"}
    assert graph.merges("join")
    assert not graph.merges("right")
    assert not graph.merges(GATEWAY)


def test_what_nobody_takes_is_the_answer() -> None:
    graph = Graph([Stage("a", work), Stage("b", work, inputs=("a",)), Stage("c", work, inputs=("a",))])
    assert graph.outputs == ("b", "c")
    assert graph.upstream(GATEWAY) == ("b", "c")


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], "at least one stage"),
        ([Stage("a", work), Stage("a", work)], "two stages are called 'a'"),
        ([Stage("a", work, inputs=("b",))], "from 'b', but there are only 'input', 'a'"),
        ([Stage("a", work, inputs=("b",)), Stage("b", work, inputs=("a",))], "'a', 'b' feed each other in a circle"),
        ([Stage("a", work, inputs=())], "must be different names, at least one"),
        ([Stage("a", work, inputs=(INPUT, INPUT))], "must be different names"),
    ],
)
def test_what_is_no_graph_is_refused(stages: list[Stage], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Graph(stages)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "a-b"}, "stage name 'a-b'"),
        ({"name": INPUT}, "stage name 'input'"),
        ({"replicas": 0}, "at least 1"),
        ({"replicas": 3, "max_replicas": 2}, "replicas=3, max_replicas=2"),
        ({"min_replicas": 2}, "min_replicas=2, replicas=1"),
        ({"replicas": True}, "expected 0 <="),
        ({"device": "gpu"}, "device must be 'cpu', 'cuda'"),
        ({"device": "cuda:x"}, "device must be"),
    ],
)
def test_a_stage_that_makes_no_sense_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Stage(**{"name": "a", "work": work, **arguments})


def test_names_are_a_sequence_and_works_can_be_called() -> None:
    with pytest.raises(TypeError, match="not one string"):
        Stage("a", work, inputs="input")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'package\.module:attribute'"):
        Stage("a", "app")
    assert Stage("a", "app:work").work == "app:work"


def test_the_autoscalers_bounds_are_the_number_of_replicas_unless_there_is_an_upper_one() -> None:
    assert (Stage("a", work, replicas=2).fewest, Stage("a", work, replicas=2).most) == (2, 2)
    growing = Stage("a", work, replicas=2, max_replicas=4)
    assert (growing.fewest, growing.most) == (1, 4)
    assert Stage("a", work, min_replicas=0, max_replicas=4).fewest == 0


@pytest.mark.parametrize("arguments", [{"max_size": 0}, {"max_size": 2.5}, {"max_wait_s": -1}, {"max_wait_s": 61}])
def test_a_batch_has_bounds(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="max_"):
        Batch(**arguments)
