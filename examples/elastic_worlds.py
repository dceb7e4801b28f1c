"""A program for ``multiworld run``: all ranks train on, whichever of them is killed, and lose no step.

    multiworld run --nproc-per-node 3 examples/elastic_worlds.py

Kill one of the processes that it names with ``kill -9``: that one is started again, and the others go on with it.
"""

from __future__ import annotations

import asyncio
import os
import sys

import torch

import multiworld as mw


async def main(num_steps: int, pause_s: float) -> None:
    weight, step = torch.zeros(4), 0
    async with mw.WorldManager() as manager:
        world = await manager.join("trainers")  # rank, size and store come from the launcher
        while True:
            try:
                # whoever was started again knows nothing: all take the state of the one that is ahead
                state = torch.cat([weight, torch.tensor([float(step)])])
                states = [torch.empty_like(state) for _ in range(world.world_size)]
                await world.all_gather(states, state)
                ahead = max(states, key=lambda each: float(each[-1]))
                weight, step = ahead[:-1].clone(), int(ahead[-1])
                print(f"rank {world.rank} of {world.world_size}, pid {os.getpid()}: from step {step}", flush=True)
                while step < num_steps:
                    gradient = torch.full((4,), float(world.rank + 1))
                    await world.all_reduce(gradient)
                    weight, step = weight + gradient, step + 1
                    if world.rank == 0 and step % 10 == 0:
                        print(f"step {step}", flush=True)
                    await asyncio.sleep(pause_s)
                await world.barrier()  # nobody leaves before all have the result
                break
            except mw.WorldBrokenError as error:
                print(error, flush=True)
                world = await manager.rejoin("trainers", timeout_s=60)
    print(f"rank {world.rank}: weight {weight.tolist()} after {step} steps", flush=True)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    asyncio.run(main(steps, pause_s=float(sys.argv[2]) if len(sys.argv) > 2 else 0.1))
