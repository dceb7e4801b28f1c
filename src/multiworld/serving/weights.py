"""Hands a stage's weights over from a live replica to a new one, over a world of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ..channel.authenticated import AuthenticatedChannel
from ..errors import ProtocolError
from ..world.manager import WorldManager
from ..world.world import World
from .messages import DONOR_RANK, TAKER_RANK, weights_world

__all__ = [
    "donate_weights",
    "hand_over_backend",
    "has_weights",
    "join_hand_over",
    "put_weights",
    "take_weights",
    "weights_of",
]

CHUNK_BYTES = 64 << 20
HAND_OVER_S = 60.0


def has_weights(work: Callable[..., Any]) -> bool:
    """Return whether there is anything to hand over: a ``state_dict`` that can be loaded again."""
    return callable(getattr(work, "state_dict", None)) and callable(getattr(work, "load_state_dict", None))


def weights_of(work: Any) -> dict[str, Tensor]:
    """Return its tensors; what else a ``state_dict`` may hold stays where it is."""
    state = work.state_dict() if has_weights(work) else {}
    return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}


def put_weights(work: Any, weights: Mapping[str, Tensor]) -> None:
    """Load weights. Raises RuntimeError (of ``load_state_dict``) if they do not fit, TypeError if it takes none."""
    if not has_weights(work):
        raise TypeError(f"{type(work).__name__} takes no weights: it has no state_dict and load_state_dict")
    state = copy.copy(work.state_dict())  # which may be the work's own
    unknown = sorted(set(weights) - set(state))
    if unknown:
        raise RuntimeError(f"weights that {type(work).__name__} does not have: {', '.join(unknown[:5])}")
    state.update(weights)
    work.load_state_dict(state)


def hand_over_backend(backend: str) -> str:
    """Return the channel for what replicas hand to each other, where ``backend`` is that of the requests.

    All of it is on the CPU; where requests are authenticated, so is it.
    """
    return backend if backend == AuthenticatedChannel.name else "auto"


async def join_hand_over(
    manager: WorldManager, name: str, rank: int, store: str, backend: str, timeout_s: float
) -> World:
    """Join the world of one that gives and one that takes. Raises MultiworldError if the other does not come."""
    return await manager.join(
        name, rank=rank, world_size=2, store=store, backend=hand_over_backend(backend), timeout_s=timeout_s
    )


async def donate_weights(
    manager: WorldManager, donor: str, member: str, weights: Mapping[str, Tensor], store: str, backend: str
) -> None:
    """Send weights to ``member``, in chunks. Raises MultiworldError if it goes, or does not come.

    ``backend``: of the requests; both ends give the same.
    """
    world = await join_hand_over(manager, weights_world(donor, member), DONOR_RANK, store, backend, HAND_OVER_S)
    try:
        for chunk in _chunks(weights):
            await world.send_tensors(chunk, TAKER_RANK, timeout_s=HAND_OVER_S)
        await world.send_tensors({}, TAKER_RANK, timeout_s=HAND_OVER_S)
        await world.barrier(timeout_s=HAND_OVER_S)
    finally:
        await world.leave()


async def take_weights(manager: WorldManager, donor: str, member: str, store: str, backend: str) -> dict[str, Tensor]:
    """Return what ``donate_weights`` sends. Raises MultiworldError."""
    world = await join_hand_over(manager, weights_world(donor, member), TAKER_RANK, store, backend, HAND_OVER_S)
    weights: dict[str, Tensor] = {}
    try:
        while True:
            chunk = await world.recv_tensors(DONOR_RANK, timeout_s=HAND_OVER_S)
            if not isinstance(chunk, dict):
                raise ProtocolError(f"{donor} sent a {type(chunk).__name__} in place of weights")
            if not chunk:
                await world.barrier(timeout_s=HAND_OVER_S)
                return weights
            weights.update(chunk)
    finally:
        await world.leave()


def _chunks(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    chunk: dict[str, Tensor] = {}
    size_bytes = 0
    for name, tensor in weights.items():
        chunk[name] = tensor.contiguous().cpu()
        size_bytes += tensor.nbytes
        if size_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = {}, 0
    if chunk:
        yield chunk
