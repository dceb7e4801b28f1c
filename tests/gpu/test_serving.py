"""Stages on a CUDA device: what arrives there, what leaves it, and what a replica takes over there from another one."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from torch import Tensor, nn

from multiworld.model.cut import cut
from multiworld.serving import Batch, Pipeline, Stage
from multiworld.serving.generation import Alone, Generator
from multiworld.testing import scaled
from tests.gpu.test_nccl import NUM_DEVICES
from tests.process.test_serving_faults import Load, healed, kill, of
from tests.process.test_serving_generation import PROMPTS, generate, kill_the_middle, make_stages

DEVICE = "cuda:0"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(scaled(120.0)),
    pytest.mark.skipif(NUM_DEVICES == 0, reason="needs a CUDA device"),
]


class Scale(nn.Module):
    """Multiplies by a weight, exactly, and says which kind of device it did that on."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([factor]))

    def forward(self, x: Tensor) -> Tensor:
        if x.device != self.factor.device or str(x.device) != DEVICE:
            raise AssertionError(f"the input is on {x.device}, the weight on {self.factor.device}")
        return x * self.factor


class OnBoth(nn.Module):
    """Returns views and a second tensor, as a device's own kernels leave them: not contiguous, not all there yet."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for _ in range(50):
            x = x + 1
        return {"turned": x.t(), "host": torch.ones(2), "half": x.half()}


async def test_a_stage_on_a_device_loses_nothing_when_a_replica_is_killed_added_and_updated() -> None:
    batch = Batch(max_size=8, max_wait_s=0.002)
    pipeline = Pipeline([Stage("a", Scale(2.0), device=DEVICE, replicas=2, batch=batch), Stage("b", torch.neg)])
    async with pipeline.deploy() as served:
        load = Load(served, lambda x: -2 * x)
        async with load.running(8):
            await asyncio.sleep(1.0)
            await healed(served, {kill(of(served, "a")[0])}, a=2, b=1)
            await served.scale("a", 3)
            await served.scale("a", 1)
            await served.update("a", {"factor": torch.tensor([2.0])})
        assert load.num_right > 100
        await served.update("a", {"factor": torch.tensor([3.0])})
        assert torch.equal(await served.infer(torch.tensor([1.0, 2.0])), torch.tensor([-3.0, -6.0]))  # type: ignore[arg-type]


async def test_results_leave_a_device_complete_and_contiguous() -> None:
    async with Pipeline([Stage("a", OnBoth(), device=DEVICE)]).deploy() as served:
        for size in (1, 1000):
            x = torch.randn(size, size + 1)
            answer = await served.infer(x)
            assert isinstance(answer, dict)
            expected = x
            for _ in range(50):
                expected = expected + 1
            assert torch.equal(answer["turned"], expected.t())
            assert torch.equal(answer["half"], expected.half())
            assert torch.equal(answer["host"], torch.ones(2))


async def test_a_model_that_is_cut_on_a_device_answers_there_as_the_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6))).eval().to(DEVICE)
    x = torch.randn(16, 256)
    expected = model(x.to(DEVICE)).detach().cpu()
    parts = cut(copy.deepcopy(model), x.to(DEVICE), 3)
    stages = [Stage(f"part{number}", part.cpu(), device=DEVICE) for number, part in enumerate(parts)]
    async with Pipeline(stages).deploy() as served:
        assert torch.equal(await served.infer(x), expected)  # type: ignore[arg-type]


async def test_states_on_a_device_are_made_anew_when_their_replica_is_killed() -> None:
    alone = Generator(Alone(make_stages()))
    expected = [await generate(alone, number) for number in range(len(PROMPTS))]
    names = ("first", "blocks", "last")
    stages = [
        Stage(name, stage, device=DEVICE, replicas=1 + (name == "blocks"), batch=Batch(max_size=16))
        for name, stage in zip(names, make_stages(), strict=True)
    ]
    told: asyncio.Queue[list[int]] = asyncio.Queue()
    async with Pipeline(stages, policy="sticky").deploy() as served, Generator(served) as generator:
        killing = asyncio.create_task(kill_the_middle(served, told))
        texts = await asyncio.gather(*(generate(generator, number, told.put) for number in range(len(PROMPTS))))
        await killing
        assert texts == expected
        assert generator.statistics()["replays"] > 0
