"""A program on a world: it goes on with whoever is there, and its processes outlive the failures of others."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
from typing import Any

import torch

import multiworld as mw
from multiworld import elastic

from .journal import JournalWriter

JOIN_S = 120.0
HIGH = 2**40


async def work(journal: JournalWriter, pause_s: float) -> None:
    async with mw.WorldManager() as manager:
        world = await manager.join("w", timeout_s=JOIN_S)
        number = random.randrange(1, HIGH)
        while True:
            try:
                await _step(journal, world, number)
                place = elastic.place()
                if place is None or (place.rank, place.world_size) == (world.rank, world.world_size):
                    await asyncio.sleep(pause_s)
                    continue
                journal.write("moved", rank=place.rank, world_size=place.world_size)
            except mw.WorldBrokenError as error:
                journal.write("broken", rank=world.rank, cause=type(error).__name__, detail=str(error))
            world = await manager.rejoin("w", timeout_s=JOIN_S)
            number = random.randrange(1, HIGH)


async def _step(journal: JournalWriter, world: mw.World, number: int) -> None:
    """Reduce what tells who takes part: the number of rank 0, and how many there are."""
    told = torch.tensor([number if world.rank == 0 else 0, 1])
    await world.all_reduce(told)
    formation, members = map(int, told)
    place = elastic.place()
    journal.write(
        "step",
        formation=formation,
        rank=world.rank,
        world_size=world.world_size,
        members=members,
        generation=world.generation,
        job_generation=None if place is None else place.generation,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--pause-s", type=float, default=0.02)
    options = parser.parse_args()
    journal = JournalWriter(
        options.journal,
        node=os.environ.get("MULTIWORLD_BENCHMARK_NODE", ""),
        master=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    )

    def end(signum: int, _: Any) -> None:
        journal.write("asked to end", signum=signum)
        signal.signal(signum, signal.SIG_DFL)
        signal.raise_signal(signum)

    signal.signal(signal.SIGTERM, end)
    journal.write("begun")
    asyncio.run(work(journal, options.pause_s))


if __name__ == "__main__":
    main()
