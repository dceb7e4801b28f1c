"""Hands weights over from one member of a deployment to another, over a world of their own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...channel.auto import AuthenticatedChannel
from ...model.weights import recv_weights, send_weights
from ...world.manager import WorldManager
from ...world.world import World
from .messages import DONOR_RANK, TAKER_RANK, weights_world

__all__ = ["donate_weights", "hand_over_backend", "join_hand_over", "take_weights"]

HAND_OVER_S = 60.0


def hand_over_backend(backend: str) -> str:
    """Return the channel of a hand-over between members whose requests use ``backend``.

    What is handed over lies on the CPU. It is authenticated if the requests are.
    """
    return backend if backend == AuthenticatedChannel.name else "auto"


async def join_hand_over(
    manager: WorldManager, name: str, rank: int, store: str, backend: str, timeout_s: float
) -> World:
    """Join the world of one member that gives and one that takes. Raises MultiworldError if the other does not join."""
    return await manager.join(
        name, rank=rank, world_size=2, store=store, backend=hand_over_backend(backend), timeout_s=timeout_s
    )


async def donate_weights(
    manager: WorldManager, donor: str, member: str, weights: Mapping[str, Tensor], store: str, backend: str
) -> None:
    """Send weights to ``member``. Raises MultiworldError if it does not come, or is lost.

    ``backend``: of the requests; both members must give the same.
    """
    world = await join_hand_over(manager, weights_world(donor, member), DONOR_RANK, store, backend, HAND_OVER_S)
    try:
        await send_weights(world, TAKER_RANK, weights, HAND_OVER_S)
    finally:
        await world.leave()


async def take_weights(manager: WorldManager, donor: str, member: str, store: str, backend: str) -> dict[str, Tensor]:
    """Return what ``donate_weights`` sends. Raises MultiworldError."""
    world = await join_hand_over(manager, weights_world(donor, member), TAKER_RANK, store, backend, HAND_OVER_S)
    try:
        return await recv_weights(world, DONOR_RANK, HAND_OVER_S)
    finally:
        await world.leave()
