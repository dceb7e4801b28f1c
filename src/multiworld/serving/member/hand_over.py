"""Hands weights over from one member of a deployment to another, over a world of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from torch import Tensor

from ...channel.auto import AuthenticatedChannel
from ...model.weights import recv_weights, send_weights
from ...world.manager import WorldManager
from ...world.world import World
from .messages import DONOR_RANK, TAKER_RANK, weights_world

HAND_OVER_S = 60.0


@asynccontextmanager
async def hand_over_world(
    manager: WorldManager, name: str, rank: int, store: str, backend: str, timeout_s: float
) -> AsyncIterator[World]:
    """Give the world of one member that gives and one that takes. Raises MultiworldError if the other does not join.

    ``backend``: of the requests. What is handed over lies on the CPU. It is authenticated if the requests are.
    """
    backend = backend if backend == AuthenticatedChannel.name else "auto"
    world = await manager.join(name, rank=rank, world_size=2, store=store, backend=backend, timeout_s=timeout_s)
    try:
        yield world
    finally:
        await world.leave()


async def donate_weights(
    manager: WorldManager, donor: str, member: str, weights: Mapping[str, Tensor], store: str, backend: str
) -> None:
    """Send weights to ``member``. Raises MultiworldError if it does not come, or is lost.

    ``backend``: of the requests; both members must give the same.
    """
    name = weights_world(donor, member)
    async with hand_over_world(manager, name, DONOR_RANK, store, backend, HAND_OVER_S) as world:
        await send_weights(world, TAKER_RANK, weights, HAND_OVER_S)


async def take_weights(manager: WorldManager, donor: str, member: str, store: str, backend: str) -> dict[str, Tensor]:
    """Return what ``donate_weights`` sends. Raises MultiworldError."""
    name = weights_world(donor, member)
    async with hand_over_world(manager, name, TAKER_RANK, store, backend, HAND_OVER_S) as world:
        return await recv_weights(world, DONOR_RANK, HAND_OVER_S)
