"""New weights replace the old ones, replica by replica, while requests flow; bad ones are rolled back.

python examples/serve_update.py
"""

from __future__ import annotations

import asyncio
from collections import Counter

import torch
from torch import Tensor, nn

import multiworld as mw


class Scale(nn.Module):
    """Multiplies by one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


pipeline = mw.serving.Pipeline([mw.serving.Stage("scale", Scale, replicas=2)], name="update")


async def main() -> None:
    answers: Counter[float] = Counter()

    async def client(served: mw.serving.Deployment) -> None:
        while True:
            answer = await served.infer(torch.ones(1))
            assert isinstance(answer, Tensor)
            answers[answer.item()] += 1

    async with pipeline.deploy() as served:
        clients = [asyncio.create_task(client(served)) for _ in range(4)]
        await asyncio.sleep(0.5)
        version = await served.update("scale", {"factor": torch.tensor(3.0)})
        print(f"version {version} serves; answers so far: {dict(answers)}")
        try:
            await served.update("scale", {"factor": torch.ones(5)})
        except mw.serving.DeploymentError as error:
            print(f"refused: {str(error).splitlines()[0]}")
        answers.clear()
        await asyncio.sleep(0.5)
        for task in clients:
            task.cancel()
        results = await asyncio.gather(*clients, return_exceptions=True)
        failed = [result for result in results if not isinstance(result, asyncio.CancelledError)]
        print(f"after it: {len(failed)} errors, only answers of version {version}: {set(answers) == {3.0}}")


if __name__ == "__main__":
    asyncio.run(main())
