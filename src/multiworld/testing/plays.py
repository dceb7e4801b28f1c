"""How each collective is played by ranks that know what the others give, and what it must leave behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from torch import Tensor

from ..channel.base import ReduceOp
from ..world.world import World


class Part(ABC):
    """The part of one rank in one collective. What a rank gives is random or constant, but known to all ranks."""

    world: World
    root: int
    op: Any = ReduceOp.SUM

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def ranks(self) -> range:
        return range(self.world.world_size)

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @abstractmethod
    def moved(self, rank: int, part: int = 0, more: int = 0) -> Tensor:
        """Return what a rank gives to be moved; ``part`` tells apart what it gives to different ranks.

        ``more``: how many elements it has beyond the usual number.
        """

    @abstractmethod
    def number(self, rank: int, part: int = 0) -> Tensor:
        """Return what a rank gives to be reduced."""

    @abstractmethod
    def blank(self, more: int = 0) -> Tensor:
        """Return a tensor to receive into."""

    @abstractmethod
    def check(self, found: Tensor, expected: Tensor, of: str = "") -> None:
        """Raise unless both are the same; ``of`` says which tensor was found, if the collective has several."""

    @abstractmethod
    def check_reduced(self, found: Tensor, part: int = 0) -> None:
        """Raise unless it is the reduction of what all ranks give."""


async def _broadcast(case: Part) -> None:
    sent = case.moved(case.root)
    tensor = sent.clone() if case.is_root else case.blank()
    await case.world.broadcast(tensor, case.root)
    case.check(tensor, sent)


async def _all_gather(case: Part) -> None:
    outputs, mine = [case.blank() for _ in case.ranks], case.moved(case.rank)
    await case.world.all_gather(outputs, mine)
    for rank, output in enumerate(outputs):
        case.check(output, case.moved(rank), f" part {rank},")
    case.check(mine, case.moved(case.rank), " the input,")


async def _gather(case: Part) -> None:
    outputs, mine = [case.blank() for _ in case.ranks], case.moved(case.rank)
    await case.world.gather(mine, outputs if case.is_root else None, case.root)
    for rank, output in enumerate(outputs):
        case.check(output, case.moved(rank) if case.is_root else case.blank(), f" part {rank},")
    case.check(mine, case.moved(case.rank), " the input,")


async def _scatter(case: Part) -> None:
    inputs, tensor = [case.moved(case.root, part) for part in case.ranks], case.blank()
    await case.world.scatter(tensor, inputs if case.is_root else None, case.root)
    case.check(tensor, case.moved(case.root, case.rank))
    for part, given in enumerate(inputs):
        case.check(given, case.moved(case.root, part), f" input {part},")


async def _all_to_all(case: Part) -> None:
    """Each pair of ranks has a shape of its own."""
    inputs = [case.moved(case.rank, part, more=case.rank + 2 * part) for part in case.ranks]
    outputs = [case.blank(more=rank + 2 * case.rank) for rank in case.ranks]
    await case.world.all_to_all(outputs, inputs)
    for rank, output in enumerate(outputs):
        case.check(output, case.moved(rank, case.rank, more=rank + 2 * case.rank), f" part {rank},")
    for part, given in enumerate(inputs):
        case.check(given, case.moved(case.rank, part, more=case.rank + 2 * part), f" input {part},")


async def _all_reduce(case: Part) -> None:
    tensor = case.number(case.rank)
    await case.world.all_reduce(tensor, case.op)
    case.check_reduced(tensor)


async def _reduce(case: Part) -> None:
    tensor = case.number(case.rank)
    await case.world.reduce(tensor, case.root, case.op)
    if case.is_root:
        case.check_reduced(tensor)
    else:
        case.check(tensor, case.number(case.rank), " the tensor of a rank that is not the root,")


async def _reduce_scatter(case: Part) -> None:
    inputs, output = [case.number(case.rank, part) for part in case.ranks], case.blank()
    await case.world.reduce_scatter(output, inputs, case.op)
    case.check_reduced(output, case.rank)
    for part, given in enumerate(inputs):
        case.check(given, case.number(case.rank, part), f" input {part},")


PLAYS: Mapping[str, Callable[[Part], Coroutine[Any, Any, None]]] = {
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
