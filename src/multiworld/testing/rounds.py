"""Rounds of an operation, one after the other, whose right results are known, so that no wrong one goes unseen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import torch
from torch import Tensor

from ..world.world import World
from .plays import PLAYS, Part
from .tasks import together

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


class _Round(Part):
    """One operation: its kind, its number and the number of elements of every tensor in it."""

    def __init__(self, world: World, kind: str, number: int, numel: int) -> None:
        self.world, self.root = world, number % world.world_size
        self.kind, self.at, self._numel = kind, number, numel

    def moved(self, rank: int, part: int = 0, more: int = 0) -> Tensor:
        return torch.full((self._numel + more,), contribution(self.at, rank, part))

    def number(self, rank: int, part: int = 0) -> Tensor:
        return self.moved(rank, part)

    def blank(self, more: int = 0) -> Tensor:
        return torch.full((self._numel + more,), -1.0)

    def check(self, found: Tensor, expected: Tensor, of: str = "") -> None:
        if not torch.equal(found, expected):
            low, high = found.min().item(), found.max().item()
            values = f"values from {low:g} to {high:g}"
            raise WrongResultError(f"{self.kind}{of}", self.at, expected[0].item(), values)

    def check_reduced(self, found: Tensor, part: int = 0) -> None:
        total = sum(contribution(self.at, rank, part) for rank in self.ranks)
        self.check(found, torch.full_like(found, total))


async def play_round(world: World, kind: str, number: int, numel: int = 1024) -> None:
    """Take part in round ``number`` of an operation on float32 tensors of ``numel`` elements, and check the result.

    All ranks play the same kind (of ``KINDS`` or ``EXCHANGES``) and number. Raises ``WrongResultError``, or what the
    operation raises. Exact for up to 8 ranks.
    """
    play = KINDS.get(kind) or EXCHANGES[kind]
    await play(_Round(world, kind, number, numel))


async def _send(round_: _Round) -> None:
    """Everyone sends to the next rank and receives from the one before."""
    world, previous = round_.world, (round_.rank - 1) % len(round_.ranks)
    tensor = round_.blank()
    await together(
        world.send(round_.moved(round_.rank), (round_.rank + 1) % len(round_.ranks), tag=round_.at),
        world.recv(tensor, previous, tag=round_.at),
    )
    round_.check(tensor, round_.moved(previous))


async def _send_tensors(round_: _Round) -> None:
    """As ``_send``, with two tensors and a receiver that knows nothing of them."""
    world, previous = round_.world, (round_.rank - 1) % len(round_.ranks)
    payload = {"a": round_.moved(round_.rank), "b": round_.moved(round_.rank, 1)}
    _, received = await together(
        world.send_tensors(payload, (round_.rank + 1) % len(round_.ranks), tag=round_.at),
        world.recv_tensors(previous, tag=round_.at),
    )
    for part, name in enumerate(payload):
        round_.check(received[name], round_.moved(previous, part), f", tensor {name}")


async def _barrier(round_: _Round) -> None:
    await round_.world.barrier()


KINDS = PLAYS
"""The collectives that carry data."""

EXCHANGES: Mapping[str, Callable[[_Round], Awaitable[None]]] = {
    "send": _send,
    "send_tensors": _send_tensors,
    "barrier": _barrier,
}
"""The operations that are no collectives, and the one that carries nothing."""
