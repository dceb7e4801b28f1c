"""Reads and loads the tensors of a ``state_dict``, and sends them from one rank of a world to another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ..errors import ProtocolError
from ..world.world import World

CHUNK_BYTES = 64 << 20


def has_weights(work: Callable[..., Any]) -> bool:
    """Return whether there is a ``state_dict`` that can be loaded again."""
    return callable(getattr(work, "state_dict", None)) and callable(getattr(work, "load_state_dict", None))


def weights_of(work: Any) -> dict[str, Tensor]:
    """Return the tensors of a ``state_dict``; its other values are left out."""
    state = work.state_dict() if has_weights(work) else {}
    return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}


def put_weights(work: Any, weights: Mapping[str, Tensor]) -> None:
    """Load weights. Raises RuntimeError (of ``load_state_dict``) if they do not fit, TypeError if it takes none."""
    if not has_weights(work):
        raise TypeError(f"{type(work).__name__} takes no weights: it has no state_dict and load_state_dict")
    state = copy.copy(work.state_dict())  # a copy: state_dict may return a dict that the work itself uses
    unknown = sorted(set(weights) - set(state))
    if unknown:
        raise RuntimeError(f"weights that {type(work).__name__} does not have: {', '.join(unknown[:5])}")
    state.update(weights)
    work.load_state_dict(state)


async def send_weights(world: World, rank: int, weights: Mapping[str, Tensor], timeout_s: float) -> None:
    """Send weights to ``recv_weights`` of another rank, in chunks. ``timeout_s`` bounds each chunk.

    Returns when the receiver has them all. Raises MultiworldError if the world breaks or a chunk takes too long.
    """
    for chunk in _chunks(weights):
        await world.send_tensors(chunk, rank, timeout_s=timeout_s)
    await world.send_tensors({}, rank, timeout_s=timeout_s)
    await world.barrier(timeout_s=timeout_s)


async def recv_weights(world: World, rank: int, timeout_s: float) -> dict[str, Tensor]:
    """Return the weights that ``send_weights`` of another rank sends, on the CPU. Raises MultiworldError."""
    weights: dict[str, Tensor] = {}
    while True:
        chunk = await world.recv_tensors(rank, timeout_s=timeout_s)
        if not isinstance(chunk, dict):
            raise ProtocolError(f"world {world.name!r}: rank {rank} sent a {type(chunk).__name__} in place of weights")
        if not chunk:
            await world.barrier(timeout_s=timeout_s)
            return weights
        weights.update(chunk)


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
