"""A second member that runs out of something: memory for a message, or descriptors to wait with."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import torch

import multiworld as mw
from multiworld.testing import wait_until
from multiworld.testing.rounds import play_round
from multiworld.testing.worker import report

SPARE_BYTES = 30_000_000  # beyond what it has mapped: enough to go on, too little for the message


async def receive_without_memory(url: str, backend: str) -> None:
    """Receive what does not fit, and tell how that ended."""
    async with mw.WorldManager() as manager:
        world = await manager.join("w", rank=1, world_size=2, store=url, backend=backend)
        await play_round(world, "all_reduce", 0, 1_000_000)  # what this takes is there from now on
        mapped_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + SPARE_BYTES, limits[1]))
        try:
            await world.recv_tensors(0)
        except mw.WorldBrokenError as error:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            report("broken", error=type(error).__name__, rank=error.rank, cause=error.cause)


def tell_when_waiting(world: mw.World) -> None:
    assert wait_until(lambda: world.statistics().channel.receives_waiting == 1, 10)
    report("waiting")


def receive_without_descriptors(url: str, backend: str) -> None:
    """Receive on a thread that has never waited for a message, with no descriptor to spare."""
    manager = mw.WorldManager()
    world = manager.blocking.join("w", rank=1, world_size=2, store=url, backend=backend)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    threading.Thread(target=tell_when_waiting, args=(world,)).start()
    tensor = torch.zeros(4)
    world.blocking.recv(tensor, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    report("received", value=tensor.tolist())
    manager.close()
