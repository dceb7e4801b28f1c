"""Which version of each stage's weights an answer is of."""

from __future__ import annotations

import torch

from multiworld.serving.flow.context import EMPTY, RequestContext
from multiworld.serving.graph import INPUT, Graph, Stage
from multiworld.serving.ingress.answers import Report
from multiworld.serving.ingress.versions import merged_weights, shown, versions_of, with_version
from tests.unit.serving.wires import Plant


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


RHOMBUS = [
    Stage("a", twice),
    Stage("l", twice),
    Stage("r", twice, inputs=("a",)),
    Stage("m", plus, inputs=("l", "r")),
]


def test_the_first_version_is_not_noted() -> None:
    assert with_version({}, "a", 1) == {}
    assert with_version({"a": (2,)}, "b", 3) == {"a": (2,), "b": (3,)}


def test_a_stage_that_parts_passed_in_two_versions_shows_both() -> None:
    graph = Graph(RHOMBUS)
    noted = merged_weights(graph, [("l", RequestContext(weights={"a": (2,)})), ("r", EMPTY)])
    assert noted == {"a": (1, 2)}
    assert shown(versions_of(graph, noted)) == "a=1+2,l=1,r=1,m=1"


def test_parts_that_never_passed_a_stage_say_nothing_of_it() -> None:
    graph = Graph([Stage("a", twice), Stage("m", plus, inputs=("a", "input"))])
    assert merged_weights(graph, [("a", RequestContext(weights={"a": (3,)})), (INPUT, EMPTY)]) == {"a": (3,)}
    assert merged_weights(graph, [("a", EMPTY), (INPUT, EMPTY)]) == {}


async def test_an_answer_tells_the_versions_that_executed_it() -> None:
    plant = Plant(RHOMBUS)
    for name in ("m-1", "l-1", "r-1", "a-1"):
        await plant.add(name)
    report = Report()
    await plant.ingress.infer(torch.ones(1), report=report)
    assert report.versions == {"a": (1,), "l": (1,), "r": (1,), "m": (1,)}
    plant.replicas["a-1"].version, plant.replicas["r-1"].version = 2, 3
    await plant.ingress.infer(torch.ones(1), report=report, request_id="x")
    assert report.versions == {"a": (2,), "l": (1,), "r": (3,), "m": (1,)}
    plant.replicas["a-1"].version = 4
    kept = Report()
    await plant.ingress.infer(torch.ones(1), report=kept, request_id="x")
    assert kept.versions == report.versions
    assert kept.attempts == 1
    await plant.aclose()


async def test_versions_of_several_outputs() -> None:
    plant = Plant([Stage("a", twice), Stage("b", twice, inputs=("input",))])
    for name in ("b-1", "a-1"):
        await plant.add(name)
    plant.replicas["b-1"].version = 2
    report = Report()
    await plant.ingress.infer(torch.ones(1), report=report)
    assert report.versions == {"a": (1,), "b": (2,)}
    await plant.aclose()
