"""Where a request was when its time ran out."""

from __future__ import annotations

import asyncio

import pytest
import torch

from multiworld.serving.errors import DeadlineExceededError
from multiworld.serving.graph import Graph, Stage
from tests.unit.serving.simulated_fleet import SimulatedFleet, hear, send
from tests.unit.serving.wires import Plant


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


async def slow(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(5)
    return x


def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def plant(*stages: Stage) -> Plant:
    made = Plant(stages)

    def ask(ids: list[bytes]) -> None:
        for replica in made.replicas.values():
            made.ingress.whereabouts.told(replica.whereabouts(ids))

    made.ingress.ask_where = ask
    return made


async def where(made: Plant, *names: str, timeout_s: float = 1.0) -> str:
    for name in names:
        await made.add(name)
    with pytest.raises(DeadlineExceededError) as caught:
        await made.ingress.infer(torch.ones(1), timeout_s=timeout_s)
    await made.aclose()
    return caught.value.where


@pytest.mark.parametrize("slow_stage", ["a", "b", "c"])
async def test_the_error_names_the_stage_that_was_executing_it(slow_stage: str) -> None:
    made = plant(*(Stage(name, slow if name == slow_stage else twice) for name in "abc"))
    assert await where(made, "c-1", "b-1", "a-1") == slow_stage


async def test_a_branch_that_is_slow_is_named_and_not_the_stage_that_waits_for_it() -> None:
    made = plant(
        Stage("a", twice), Stage("l", slow), Stage("r", twice, inputs=("a",)), Stage("m", plus, inputs=("l", "r"))
    )
    assert await where(made, "m-1", "l-1", "r-1", "a-1") == "l"


async def test_what_is_still_at_the_gateway_is_at_its_first_stage_whoever_answers() -> None:
    made = Plant([Stage("a", slow), Stage("b", twice)])
    assert await where(made, "b-1", "a-1") == "a"
    made = Plant([Stage("a", slow), Stage("b", twice)])
    assert await where(made, "b-1", "a-1", timeout_s=0.01) == "a"


def test_the_controller_passes_the_question_and_the_answers_on() -> None:
    simulation = SimulatedFleet(Graph([Stage("a", "m:w"), Stage("b", "m:w")]), gateways=1)
    simulation.run_until_settled()
    fleet = simulation.fleet
    asked = hear(fleet, "gateway-1", {"event": "where", "ids": ["00"]}, simulation.now)
    question = {"do": "where", "ids": ["00"], "asker": "gateway-1"}
    assert sorted(asked, key=repr) == [send("a-1", question), send("b-1", question)]
    answer = {"00": ["b", True]}
    told = hear(fleet, "b-1", {"event": "at", "asker": "gateway-1", "at": answer}, simulation.now)
    assert told == [send("gateway-1", {"do": "at", "at": answer})]
    assert hear(fleet, "b-1", {"event": "at", "asker": "gateway-9", "at": answer}, simulation.now) == []
