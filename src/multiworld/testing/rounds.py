"""Rounds of an operation, one after the other, whose right results are known, so that no wrong one goes unseen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .tasks import together

if TYPE_CHECKING:
    from ..world.world import World

__all__ = ["EXCHANGES", "KINDS", "WrongResultError", "contribution", "play_round"]

MODULUS = 1000
"""Contributions repeat after so many rounds, so that float32 holds every sum exactly."""


class WrongResultError(AssertionError):
    """An operation succeeded with other data than it should have; the worst that can happen."""

    def __init__(self, kind: str, number: int, expected: float, found: str) -> None:
        super().__init__(kind, number, expected, found)
        self.kind, self.number, self.expected, self.found = kind, number, expected, found

    def __str__(self) -> str:
        return f"{self.kind} number {self.number} succeeded with {self.found}, where all had to be {self.expected:g}"


def contribution(number: int, rank: int, part: int = 0) -> float:
    """Return what a rank gives in a round; ``part`` tells apart what it gives to different ranks."""
    return float((number % MODULUS) * 64 + rank * 8 + part)


@dataclass(frozen=True)
class _Round:
    """One operation: its number and the number of elements of every tensor in it."""

    world: World
    number: int
    numel: int

    def contribution(self, rank: int, part: int = 0) -> float:
        return contribution(self.number, rank, part)

    def mine(self, part: int = 0) -> Tensor:
        return torch.full((self.numel,), self.contribution(self.world.rank, part))

    def blank(self) -> Tensor:
        return torch.full((self.numel,), -1.0)

    @property
    def root(self) -> int:
        return self.number % self.world.world_size

    @property
    def ranks(self) -> range:
        return range(self.world.world_size)

    def check(self, kind: str, tensor: Tensor, expected: float) -> None:
        low, high = tensor.min().item(), tensor.max().item()
        if low != expected or high != expected:
            raise WrongResultError(kind, self.number, expected, f"values from {low:g} to {high:g}")


async def play_round(world: World, kind: str, number: int, numel: int = 1024) -> None:
    """Take part in round ``number`` of an operation on float32 tensors of ``numel`` elements, and check the result.

    All ranks play the same kind (of ``KINDS`` or ``EXCHANGES``) and number. Raises ``WrongResultError``, or what the
    operation raises. Exact for up to 8 ranks.
    """
    play = KINDS.get(kind) or EXCHANGES[kind]
    await play(_Round(world, number, numel))


async def _send(round_: _Round) -> None:
    """Everyone sends to the next rank and receives from the one before."""
    world, previous = round_.world, (round_.world.rank - 1) % round_.world.world_size
    tensor = round_.blank()
    await together(
        world.send(round_.mine(), (world.rank + 1) % world.world_size, tag=round_.number),
        world.recv(tensor, previous, tag=round_.number),
    )
    round_.check("recv", tensor, round_.contribution(previous))


async def _send_tensors(round_: _Round) -> None:
    """As ``_send``, with two tensors and a receiver that knows nothing of them."""
    world, previous = round_.world, (round_.world.rank - 1) % round_.world.world_size
    payload = {"a": round_.mine(), "b": round_.mine(1)}
    _, received = await together(
        world.send_tensors(payload, (world.rank + 1) % world.world_size, tag=round_.number),
        world.recv_tensors(previous, tag=round_.number),
    )
    for part, name in enumerate(payload):
        round_.check("recv_tensors", received[name], round_.contribution(previous, part))


async def _barrier(round_: _Round) -> None:
    await round_.world.barrier()


async def _broadcast(round_: _Round) -> None:
    tensor = round_.mine() if round_.world.rank == round_.root else round_.blank()
    await round_.world.broadcast(tensor, round_.root)
    round_.check("broadcast", tensor, round_.contribution(round_.root))


async def _all_reduce(round_: _Round) -> None:
    tensor = round_.mine()
    await round_.world.all_reduce(tensor)
    round_.check("all_reduce", tensor, sum(map(round_.contribution, round_.ranks)))


async def _reduce(round_: _Round) -> None:
    tensor = round_.mine()
    await round_.world.reduce(tensor, round_.root)
    if round_.world.rank == round_.root:
        round_.check("reduce", tensor, sum(map(round_.contribution, round_.ranks)))


async def _all_gather(round_: _Round) -> None:
    tensors = [round_.blank() for _ in round_.ranks]
    await round_.world.all_gather(tensors, round_.mine())
    for rank, tensor in enumerate(tensors):
        round_.check("all_gather", tensor, round_.contribution(rank))


async def _gather(round_: _Round) -> None:
    tensors = [round_.blank() for _ in round_.ranks] if round_.world.rank == round_.root else None
    await round_.world.gather(round_.mine(), tensors, round_.root)
    for rank, tensor in enumerate(tensors or ()):
        round_.check("gather", tensor, round_.contribution(rank))


async def _scatter(round_: _Round) -> None:
    tensors = [round_.mine(rank) for rank in round_.ranks] if round_.world.rank == round_.root else None
    tensor = round_.blank()
    await round_.world.scatter(tensor, tensors, round_.root)
    round_.check("scatter", tensor, round_.contribution(round_.root, round_.world.rank))


async def _reduce_scatter(round_: _Round) -> None:
    output = round_.blank()
    await round_.world.reduce_scatter(output, [round_.mine(rank) for rank in round_.ranks])
    expected = sum(round_.contribution(rank, round_.world.rank) for rank in round_.ranks)
    round_.check("reduce_scatter", output, expected)


async def _all_to_all(round_: _Round) -> None:
    outputs = [round_.blank() for _ in round_.ranks]
    await round_.world.all_to_all(outputs, [round_.mine(rank) for rank in round_.ranks])
    for rank, tensor in enumerate(outputs):
        round_.check("all_to_all", tensor, round_.contribution(rank, round_.world.rank))


KINDS: Mapping[str, Callable[[_Round], Awaitable[None]]] = {
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
"""The eight collectives that carry data, by name."""

EXCHANGES: Mapping[str, Callable[[_Round], Awaitable[None]]] = {
    "send": _send,
    "send_tensors": _send_tensors,
    "barrier": _barrier,
}
"""The operations that are no collectives, and the one that carries nothing."""
