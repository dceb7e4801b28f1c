"""A model in four stages that branch and join; replicas are killed while requests flow, and no request is lost.

python examples/serve_rhombus.py                       # brings it up, kills a replica of each stage, checks answers
multiworld serve examples/serve_rhombus.py:pipeline    # the same pipeline behind HTTP
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import torch
from torch import Tensor, nn

import multiworld as mw

WIDTH, NUM_CLIENTS, SECONDS = 32, 4, 1.0


def layers(seed: int, inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


class Join(nn.Module):
    """Takes what both branches gave, in the order of the stage's ``inputs``."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers(3, 2 * WIDTH, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.cat([left, right], dim=1))
        return answer


embed, left, right, join = layers(0, 8, WIDTH), layers(1, WIDTH, WIDTH), layers(2, WIDTH, WIDTH), Join()
pipeline = mw.serving.Pipeline(
    [
        mw.serving.Stage("embed", embed, replicas=2),
        mw.serving.Stage("left", left, inputs=("embed",), replicas=2),
        mw.serving.Stage("right", right, inputs=("embed",), replicas=2),
        mw.serving.Stage("join", join, inputs=("left", "right"), replicas=2),
    ],
    name="rhombus",
)


@torch.no_grad()
def in_one_process(x: Tensor) -> Tensor:
    hidden = embed(x)
    answer: Tensor = join(left(hidden), right(hidden))
    return answer


async def ask_on_and_on(served: mw.serving.Deployment, until: asyncio.Event) -> tuple[int, float]:
    """Return how many answers came, all of them right, and how long the slowest took."""
    num_answers, slowest_s = 0, 0.0
    while not until.is_set():
        x = torch.randn(1, 8)
        began = time.monotonic()
        answer = await served.infer(x, timeout_s=10)
        slowest_s = max(slowest_s, time.monotonic() - began)
        assert torch.equal(answer, in_one_process(x)), "a wrong answer"  # type: ignore[arg-type]
        num_answers += 1
    return num_answers, slowest_s


async def main() -> None:
    async with pipeline.deploy() as served:
        over = asyncio.Event()
        clients = [asyncio.create_task(ask_on_and_on(served, over)) for _ in range(NUM_CLIENTS)]
        for stage in ("embed", "left", "right", "join"):
            await asyncio.sleep(SECONDS)
            victim = next(replica for replica in served.replicas if replica["stage"] == stage and replica["open"])
            print(f"kill -9 {victim['id']}, pid {victim['pid']}")
            os.kill(victim["pid"], signal.SIGKILL)
        await asyncio.sleep(SECONDS)
        over.set()
        results = await asyncio.gather(*clients)
        num_answers, slowest_s = sum(number for number, _ in results), max(slowest for _, slowest in results)
        print(f"{num_answers} requests answered, all equal to the single process; the slowest took {slowest_s:.2f} s")
        print("replicas now:", *(replica["id"] for replica in served.replicas))


if __name__ == "__main__":
    asyncio.run(main())
