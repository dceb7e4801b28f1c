"""What the survivors of a dead worker learn: plain ``torch.distributed`` first, worlds second.

Four processes are in an all_reduce; rank 2 is killed before its part. In a plain Gloo group only its neighbours in the
ring notice: rank 0 waits for the group's timeout, 30 minutes by default, 5 s here. In a world every survivor gets a
typed error within moments, and the name is free for the next generation.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import Queue
from typing import NamedTuple

import torch
import torch.distributed as dist

import multiworld as mw

SIZE = 4
VICTIM = 2
PLAIN_TIMEOUT_S = 5.0


class Outcome(NamedTuple):
    """What one survivor got from the operation, and after how long."""

    rank: int
    error: str
    after_s: float


def run_plain(rank: int, path: str, outcomes: Queue[Outcome]) -> None:
    """Be one rank of a plain process group."""
    timeout = timedelta(seconds=PLAIN_TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=SIZE, timeout=timeout)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)  # connected and warm
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        outcomes.put(Outcome(rank, type(error).__name__, time.monotonic() - began))
    # A survivor that ended now would take its other neighbour with it, and hide how long that one would have waited.
    time.sleep(max(0.0, PLAIN_TIMEOUT_S + 1 - (time.monotonic() - began)))


def run_world(rank: int, store: str, outcomes: Queue[Outcome]) -> None:
    """Be one rank of a world."""

    async def work() -> None:
        async with mw.WorldManager() as manager:
            world = await manager.join("four", rank=rank, world_size=SIZE, store=store)
            tensor = torch.ones(1000)
            await world.all_reduce(tensor)
            if rank == VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            try:
                await world.all_reduce(tensor)
            except mw.WorldBrokenError as error:
                outcomes.put(Outcome(rank, type(error).__name__, time.monotonic() - began))

    asyncio.run(work())


def run_all(target: Callable[[int, str, Queue[Outcome]], None], meeting_point: str) -> list[Outcome]:
    """Run one process per rank, and return what the survivors tell."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["multiworld", "torch"])  # imported once, not by each process
    outcomes: Queue[Outcome] = context.Queue()
    processes = [context.Process(target=target, args=(rank, meeting_point, outcomes)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    told = sorted(outcomes.get(timeout=60) for _ in range(SIZE - 1))
    for process in processes:
        process.join()
    return told


def main() -> None:
    """Run both, side by side on paper."""
    with tempfile.TemporaryDirectory() as folder:
        plain = run_all(run_plain, f"{folder}/meet")
    with mw.WorldManager() as manager:
        worlds = run_all(run_world, manager.serve_store("tcp://127.0.0.1:0"))

    for title, told in (("plain torch.distributed", plain), ("worlds", worlds)):
        print(f"{title}: rank {VICTIM} was killed")
        for outcome in told:
            print(f"  rank {outcome.rank}: {outcome.error} after {outcome.after_s:.3f} s")
    assert [outcome.rank for outcome in worlds] == [rank for rank in range(SIZE) if rank != VICTIM]
    assert {outcome.error for outcome in worlds} == {"PeerDiedError"}
    assert max(outcome.after_s for outcome in worlds) < 1.0


if __name__ == "__main__":
    main()
