"""A stage is scaled out, and in again, while requests flow: more go through, and none fails.

python examples/serve_scaling.py
"""

from __future__ import annotations

import asyncio
import time

import torch
from torch import Tensor

import multiworld as mw

SERVICE_S, NUM_CLIENTS, PHASE_S = 0.02, 12, 2.0


class Slow:
    """Stands for a stage on a device of its own: it takes time, but no processor of this host."""

    async def __call__(self, x: Tensor) -> Tensor:
        async with self.device:
            await asyncio.sleep(SERVICE_S)
        return x * 2

    async def setup(self) -> None:
        self.device = asyncio.Lock()  # one request at a time


def add_one(x: Tensor) -> Tensor:
    return x + 1


pipeline = mw.serving.Pipeline(
    [mw.serving.Stage("prepare", add_one), mw.serving.Stage("slow", Slow, max_replicas=3)], name="scaling"
)


async def main() -> None:
    num_answers = 0

    async def client(served: mw.serving.Deployment) -> None:
        nonlocal num_answers
        while True:
            answer = await served.infer(torch.ones(3))
            assert isinstance(answer, Tensor)
            assert answer.tolist() == [4.0, 4.0, 4.0]
            num_answers += 1

    async with pipeline.deploy() as served:
        clients = [asyncio.create_task(client(served)) for _ in range(NUM_CLIENTS)]
        rates: list[float] = []
        for num_replicas in (1, 3, 1):
            await served.scale("slow", num_replicas)
            before, began = num_answers, time.monotonic()
            await asyncio.sleep(PHASE_S)
            rates.append((num_answers - before) / (time.monotonic() - began))
            print(f"{num_replicas} replica(s) of 'slow': {rates[-1]:.0f} answers a second")
        for task in clients:
            task.cancel()
        results = await asyncio.gather(*clients, return_exceptions=True)
        failed = [result for result in results if not isinstance(result, asyncio.CancelledError)]
        print(
            f"{num_answers} answers, {len(failed)} errors; three replicas gave {rates[1] / rates[0]:.1f} times as many"
        )


if __name__ == "__main__":
    asyncio.run(main())
