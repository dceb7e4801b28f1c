"""Collectives that run out of time at any moment: right data or an error on each rank, and the world stays usable."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
import torch

import multiworld as mw

pytestmark = pytest.mark.usefixtures("no_leaks")

SIZES = [1, 20_000, 300_000, 1_000_000]  # float32: eager, and announced or on a credit


@pytest.mark.parametrize("world_size", [2, 3])
async def test_a_deadline_at_a_random_moment_leaves_the_world_usable(world_size: int) -> None:
    seed = 11
    chance = random.Random(seed)
    managers = [mw.WorldManager() for _ in range(world_size)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        joins = [manager.join("w", rank, world_size, url, backend="tcp") for rank, manager in enumerate(managers)]
        worlds = await asyncio.gather(*joins)
        outcomes: Counter[str] = Counter()

        async def reduce(world: mw.World, tensor: torch.Tensor, delay_s: float, timeout_s: float) -> None:
            await asyncio.sleep(delay_s)
            try:
                await world.all_reduce(tensor, timeout_s=timeout_s)
            except (mw.OperationTimeoutError, mw.CollectiveMismatchError) as error:
                outcomes[type(error).__name__] += 1
            else:
                outcomes["done"] += 1
                assert bool((tensor == world_size).all()), f"wrong data, seed {seed}"

        for _ in range(120):
            size = chance.choice(SIZES)
            await asyncio.gather(
                *(
                    reduce(world, torch.ones(size), chance.uniform(0, 0.01), chance.uniform(0.001, 0.02))
                    for world in worlds
                )
            )
        assert outcomes["OperationTimeoutError"] > 20, outcomes
        tensors = [torch.ones(1_000_000) for _ in worlds]
        await asyncio.gather(*(world.all_reduce(tensor) for world, tensor in zip(worlds, tensors, strict=True)))
        assert all(bool((tensor == world_size).all()) for tensor in tensors)
        for world in worlds:
            assert world.state is mw.WorldState.ACTIVE
            channel = world.statistics().channel
            assert channel.receives_waiting == channel.sends_waiting == 0, f"seed {seed}"
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))
