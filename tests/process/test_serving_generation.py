"""Generations over real replicas, killed while they hold states, or given new weights: each text is as it must be."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from multiworld.serving import Batch, Pipeline, Stage
from multiworld.serving.deployment import Deployment
from multiworld.serving.flow.routing import rendezvous
from multiworld.serving.generation import Alone, Generator
from multiworld.serving.generation.gpt import Gpt, GptConfig, GptStage
from multiworld.testing.deadlines import scaled
from tests import warm_programs

pytestmark = pytest.mark.process

CONFIG = GptConfig(vocabulary=64, context=128, width=32, heads=2, layers=3)
NEW_TOKENS = 60
PROMPTS = [list(range(number, number + 5)) for number in range(8)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_gpt.py"


@dataclass
class Named:
    """What routing looks at."""

    name: str
    latency_s: float = 0.0
    in_flight: int = 0


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The products are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_stages(num_blocks: Sequence[int] = (1, 1, 1)) -> list[GptStage]:
    torch.manual_seed(0)
    return Gpt(CONFIG).eval().stages(num_blocks, capacity_tokens=2000)


async def generate(
    generator: Generator,
    number: int,
    on_token: Callable[[list[int]], Awaitable[None]] | None = None,
    before: Sequence[int] = (),
) -> list[int]:
    """Return the tokens of one text that follow those ``before``."""
    tokens: list[int] = []
    async for token in generator.generate(
        [*PROMPTS[number], *before],
        max_new_tokens=NEW_TOKENS - len(before),
        temperature=float(number % 2),
        seed=number,
        timeout_s=scaled(40.0),
        key=str(number),
    ):
        tokens.append(token)
        if on_token is not None:
            await on_token(tokens)
    return tokens


async def kill_the_middle(served: Deployment, told: asyncio.Queue[list[int]]) -> None:
    """Kill the replica with the states of generation 0 after a third of all tokens."""
    for _ in range(len(PROMPTS) * NEW_TOKENS // 3):
        await told.get()
    pids = {replica["id"]: replica["pid"] for replica in served.replicas if replica["stage"] == "blocks"}
    victim = rendezvous([Named(name) for name in pids], b"0")
    os.kill(pids[victim.name], signal.SIGKILL)


async def test_no_text_changes_when_a_replica_is_killed_in_the_middle_of_eight_generations() -> None:
    alone = Generator(Alone(make_stages()))
    expected = [await generate(alone, number) for number in range(8)]
    batch = Batch(max_size=16)
    first, blocks, last = make_stages()
    stages = [
        Stage("first", first, batch=batch),
        Stage("blocks", blocks, replicas=2, batch=batch),
        Stage("last", last, batch=batch),
    ]
    told: asyncio.Queue[list[int]] = asyncio.Queue()
    async with Pipeline(stages, policy="sticky").deploy() as served, Generator(served) as generator:
        killing = asyncio.create_task(kill_the_middle(served, told))
        texts = await asyncio.gather(*(generate(generator, number, told.put) for number in range(8)))
        await killing
        assert texts == expected
        assert generator.statistics()["done"] == 8
        assert generator.statistics()["replays"] > 0


async def test_each_text_is_of_the_old_weights_up_to_a_token_and_of_the_new_ones_from_there_on() -> None:
    olds, news = make_stages((0, 2, 1)), make_stages((0, 2, 1))
    with torch.no_grad():
        for weight in news[0].parameters():
            weight.mul_(-1.5)
    names = ("first", "blocks", "last")
    stages = [Stage(name, old, batch=Batch(max_size=16), replicas=2) for name, old in zip(names, olds, strict=True)]
    paused, updated = asyncio.Semaphore(0), asyncio.Event()

    async def pause(tokens: list[int]) -> None:
        if len(tokens) == NEW_TOKENS // 3:
            paused.release()
            await updated.wait()

    async with Pipeline(stages, policy="sticky").deploy() as served, Generator(served) as generator:
        generating = asyncio.gather(*(generate(generator, number, pause) for number in range(8)))
        for _ in range(8):
            await paused.acquire()
        assert await served.update("first", news[0].state_dict()) == 2
        updated.set()
        texts = await generating
        assert generator.statistics()["replays"] == 8
    alone, changed = Generator(Alone(olds)), Generator(Alone(news))
    for number, text in enumerate(texts):
        before = (await generate(alone, number))[: NEW_TOKENS // 3]
        assert text == before + await generate(changed, number, before=before)


@pytest.mark.timeout(scaled(120.0))
def test_the_example_writes_the_same_text_when_a_replica_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "def ", "--kill", "--steps", "2", "--tokens", "80"]
    result = warm_programs.run(
        [*command, "--weights", str(tmp_path / "gpt.pt")], capture_output=True, text=True, timeout=scaled(100.0)
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"states were lost [1-9]\d* times: True", result.stdout), result.stdout
    assert "the same text in one process: True" in result.stdout
