"""A worker dies in the middle of its work; a new process takes its rank in the next generation of the same world."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess

import torch

import multiworld as mw

NUM_TASKS = 20


def run_worker(store: str, dies_at: int | None) -> None:
    """Be rank 1: square what comes. The first worker kills itself in the middle of a task."""

    async def work() -> None:
        async with mw.WorldManager() as manager:
            world = await manager.join("squares", rank=1, world_size=2, store=store)
            number = torch.empty(())
            try:
                while True:
                    await world.recv(number, src=0)
                    if number == dies_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    await world.send(number**2, dst=0)
            except mw.PeerLeftError:
                return

    asyncio.run(work())


def start_worker(store: str, dies_at: int | None) -> BaseProcess:
    """Start a worker process; it joins by itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["multiworld", "torch"])  # imported once, not by each process
    process = context.Process(target=run_worker, args=(store, dies_at))
    process.start()
    return process


async def square(world: mw.World, task: int) -> float:
    """Have the worker square one number; ``WorldBrokenError`` if it is gone."""
    answer = torch.empty(())
    await world.send(torch.tensor(float(task)), dst=1)
    await world.recv(answer, src=1)
    return float(answer)


async def main() -> None:
    """Be rank 0: hand out the tasks, and repeat the one that a worker died of."""
    squares: list[float] = []
    async with mw.WorldManager() as manager:
        store = manager.serve_store("tcp://127.0.0.1:0")
        workers = [start_worker(store, dies_at=7)]
        world = await manager.join("squares", rank=0, world_size=2, store=store)
        while len(squares) < NUM_TASKS:
            try:
                squares.append(await square(world, len(squares)))
            except mw.WorldBrokenError as error:
                print(f"task {len(squares)}: {type(error).__name__}: {error}")
                workers.append(start_worker(store, dies_at=None))
                world = await manager.rejoin("squares")
                print(f"generation {world.generation} of {world.name!r} has formed; the task is repeated")
    for worker in workers:
        worker.join()
    print(squares)
    assert squares == [float(task**2) for task in range(NUM_TASKS)]
    assert world.generation > 1
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, 0]


if __name__ == "__main__":
    asyncio.run(main())
