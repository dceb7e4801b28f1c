"""Which operation of a world each collective of nodes is, and which members' inputs an output depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from torch import Tensor

from ...wire.progress.operation import Operation
from ...world.world import World


class Parts(NamedTuple):
    """The tensors of one member: what it reads, what it writes in place, what it makes."""

    reads: list[Tensor]
    writes: list[Tensor]
    makes: list[Tensor]


Start = Callable[[World, Parts, int, object], list[Operation[None]]]
FROM_ROOT: Final = frozenset(("broadcast", "scatter"))
TO_ROOT: Final = frozenset(("gather", "reduce"))


def depends(name: str, root: int, rank: int, other: int) -> bool:
    """Whether what a rank gets depends on what another one gives: it can't end before that one has taken part."""
    if name in FROM_ROOT:
        return other == root
    return rank == root if name in TO_ROOT else True


def _broadcast(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_broadcast(each, root, None) for each in parts.writes]


def _all_reduce(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_all_reduce(each, op, None) for each in parts.writes]


def _reduce(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_reduce(each, root, op, None) for each in (*parts.writes, *parts.reads)]


def _all_gather(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_all_gather(parts.makes, parts.reads[0], None)]


def _gather(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_gather(parts.reads[0], parts.makes or None, root, None)]


def _scatter(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_scatter(parts.writes[0], parts.reads or None, root, None)]


def _reduce_scatter(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_reduce_scatter(parts.makes[0], parts.reads, op, None)]


def _all_to_all(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_all_to_all(parts.makes, parts.reads, None)]


STARTS: Final[dict[str, Start]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
