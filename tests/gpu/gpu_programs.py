"""What the worker processes of the GPU tests run: one rank each, on the device of its number."""

from __future__ import annotations

import torch

import multiworld as mw
from multiworld.testing.worker import next_command, report

NUMEL = 1 << 20


async def receive_for_ever(url: str, rank: int, size: int) -> None:
    """Join, do one collective, then wait for a message of rank 0 until the world breaks."""
    device = torch.device("cuda", rank)
    async with mw.WorldManager() as manager:
        world = await manager.join("w", rank, size, url, backend="nccl", device=device)
        tensor = torch.full((NUMEL,), float(rank), device=device)
        await world.all_reduce(tensor)
        report("ready", value=tensor[0].item())
        try:
            await world.recv(tensor, 0)
        except mw.WorldBrokenError as error:
            report("broken", error=type(error).__name__)
        await next_command()


async def reduce_for_ever(url: str, rank: int, size: int) -> None:
    """Join, and reduce until the world breaks; every result is checked."""
    device = torch.device("cuda", rank)
    expected = float(sum(range(size)))
    async with mw.WorldManager() as manager:
        world = await manager.join("w", rank, size, url, backend="nccl", device=device)
        for number in range(1_000_000):
            tensor = torch.full((NUMEL,), float(rank), device=device)
            try:
                await world.all_reduce(tensor)
            except mw.WorldBrokenError as error:
                report("broken", error=type(error).__name__, number=number)
                break
            assert bool((tensor == expected).all()), "a collective succeeded with wrong data"
            if number == 10:
                report("ready")
        await next_command()
