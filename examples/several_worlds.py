"""Send and receive in several worlds at once: one process, three worlds, and the two healthy ones outlive the third."""

from __future__ import annotations

import asyncio
import multiprocessing

import torch

import multiworld as mw

NAMES = ("red", "green", "blue")


def run_worker(name: str, store: str) -> None:
    """Be rank 1 of one world: send every tensor back doubled, until rank 0 leaves."""

    async def work() -> None:
        async with mw.WorldManager() as manager:
            world = await manager.join(name, rank=1, world_size=2, store=store)
            buffer = torch.empty(1000)
            try:
                while True:
                    await world.recv(buffer, src=0)
                    await world.send(buffer * 2, dst=0)
            except mw.PeerLeftError:
                print(f"{name}: rank 0 left, so this worker is done")

    asyncio.run(work())


async def double(world: mw.World, value: float) -> float:
    """Have the worker of one world double a tensor full of ``value``."""
    await world.send(torch.full((1000,), value), dst=1)
    answer = torch.empty(1000)
    await world.recv(answer, src=1)
    return float(answer.mean())


async def main() -> None:
    """Be rank 0 of all three worlds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["multiworld", "torch"])  # imported once, not by each process
    processes = {}
    async with mw.WorldManager() as manager:
        store = manager.serve_store("tcp://127.0.0.1:0")
        for name in NAMES:
            processes[name] = context.Process(target=run_worker, args=(name, store))
            processes[name].start()
        worlds = await asyncio.gather(*(manager.join(name, rank=0, world_size=2, store=store) for name in NAMES))

        answers = await asyncio.gather(
            *(double(world, value) for world, value in zip(worlds, (1.0, 2.0, 3.0), strict=True))
        )
        print("all three worlds at once:", answers)
        assert answers == [2.0, 4.0, 6.0]

        processes["red"].kill()
        try:
            await double(worlds[0], 1.0)
        except mw.PeerDiedError as error:
            print("red broke:", error)
        else:
            raise AssertionError("a dead worker answered")

        answers = await asyncio.gather(*(double(world, 10.0) for world in worlds[1:]))
        print("green and blue go on:", answers)
        assert answers == [20.0, 20.0]

    for process in processes.values():  # the manager has left all worlds, which the workers see
        process.join()
    assert [processes[name].exitcode for name in ("green", "blue")] == [0, 0]


if __name__ == "__main__":
    asyncio.run(main())
