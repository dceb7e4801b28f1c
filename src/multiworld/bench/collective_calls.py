"""Every collective once for raw Gloo and once for a world, on the same tensors of known content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .known_data import LARGEST, fill, holds, spoil

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
ITEM_BYTES = 4
ROOT = 0
FIRST = 2.0**-120  # of float32's smallest: an all_reduce in place grows with each call
GREATEST = 2.0**127


@dataclass(frozen=True)
class Content:
    """Factors of the rank's own tensor and of its list, one per rank. None and empty: not given, or not looked at."""

    mine: float | None = None
    parts: Sequence[float] = ()


def given(kind: str, rank: int, world_size: int) -> Content:
    """Return what a rank gives: in its own tensor and in its list of inputs."""
    number, ranks = rank + 1, range(world_size)
    if kind == "all_reduce":
        return Content(FIRST * number)
    if kind in ("reduce", "all_gather", "gather"):
        return Content(number)
    if kind == "broadcast":
        return Content(1 if rank == ROOT else None)
    if kind == "scatter":
        return Content(parts=[other + 1 for other in ranks] if rank == ROOT else [])
    if kind == "reduce_scatter":
        return Content(parts=[number * (other + 1) for other in ranks])
    if kind == "all_to_all":
        return Content(parts=[rank * world_size + other + 1 for other in ranks])
    return Content()


def gotten(kind: str, rank: int, world_size: int, count: int) -> Content:
    """Return what a rank holds after ``count`` calls: in its own tensor and in its list of outputs.

    Each all_reduce and reduce in place adds to what the one before it left, so the content counts them.
    """
    number, ranks = rank + 1, range(world_size)
    total = world_size * (world_size + 1) // 2
    if kind == "all_reduce":
        return Content(_grown(world_size, count, FIRST * total))
    if kind == "reduce":
        return Content(1 + count * (total - 1) if rank == ROOT else None)
    if kind == "broadcast":
        return Content(1)
    if kind == "scatter":
        return Content(number)
    if kind == "reduce_scatter":
        return Content(total * number)
    if kind == "all_gather" or (kind == "gather" and rank == ROOT):
        return Content(parts=[other + 1 for other in ranks])
    if kind == "all_to_all":
        return Content(parts=[other * world_size + number for other in ranks])
    return Content()


def _grown(world_size: int, count: int, first: float) -> float:
    grown = first * float(world_size) ** (count - 1)
    if grown * LARGEST >= GREATEST:
        raise ValueError(f"{count} calls of all_reduce on {world_size} ranks exceed float32: {grown:g} · {LARGEST}")
    return grown


@dataclass(frozen=True)
class Tensors:
    """What a rank gives to and gets from a collective: ``mine`` [numel] and lists of world_size such."""

    rank: int
    mine: Tensor
    inputs: list[Tensor]
    outputs: list[Tensor]

    @classmethod
    def make(cls, size_bytes: int, rank: int, world_size: int) -> Tensors:
        """Allocate them; what a collective has no use for is never touched."""
        numel = size_bytes // ITEM_BYTES
        return cls(
            rank,
            torch.empty(numel),
            [torch.empty(numel) for _ in range(world_size)],
            [torch.empty(numel) for _ in range(world_size)],
        )

    @property
    def is_root(self) -> bool:
        return self.rank == ROOT

    def prepare(self, kind: str) -> None:
        """Write what this rank gives, and spoil what it is to get."""
        gives, gets = given(kind, self.rank, len(self.inputs)), gotten(kind, self.rank, len(self.inputs), 1)
        if gives.mine is not None:
            fill(self.mine, gives.mine)
        elif gets.mine is not None:
            spoil(self.mine)
        for tensor, factor in zip(self.inputs, gives.parts, strict=False):
            fill(tensor, factor)
        for tensor, _ in zip(self.outputs, gets.parts, strict=False):
            spoil(tensor)

    def hold(self, kind: str, count: int) -> bool:
        """Whether this rank got what ``count`` calls give."""
        gets = gotten(kind, self.rank, len(self.inputs), count)
        right = gets.mine is None or holds(self.mine, gets.mine)
        return right and all(map(holds, self.outputs, gets.parts))


def _of_root(options: Any) -> Any:
    options.rootRank = ROOT
    return options


GLOO_CALLS: Mapping[str, Callable[[dist.ProcessGroup, Tensors], dist.Work]] = {
    "broadcast": lambda group, tensors: group.broadcast([tensors.mine], _of_root(dist.BroadcastOptions())),
    "all_reduce": lambda group, tensors: group.allreduce([tensors.mine]),
    "reduce": lambda group, tensors: group.reduce([tensors.mine], _of_root(dist.ReduceOptions())),
    "all_gather": lambda group, tensors: group.allgather([tensors.outputs], [tensors.mine]),
    "gather": lambda group, tensors: group.gather(
        [tensors.outputs] if tensors.is_root else [], [tensors.mine], _of_root(dist.GatherOptions())
    ),
    "scatter": lambda group, tensors: group.scatter(
        [tensors.mine], [tensors.inputs] if tensors.is_root else [], _of_root(dist.ScatterOptions())
    ),
    "reduce_scatter": lambda group, tensors: group.reduce_scatter([tensors.mine], [tensors.inputs]),
    "all_to_all": lambda group, tensors: group.alltoall(tensors.outputs, tensors.inputs),
    "barrier": lambda group, tensors: group.barrier(),
}


class Collectives(Protocol[T_co]):
    """What ``World`` and ``world.blocking`` have in common; ``T_co`` is what is awaited, or None."""

    def broadcast(self, tensor: Tensor, src: int) -> T_co: ...
    def all_reduce(self, tensor: Tensor) -> T_co: ...
    def reduce(self, tensor: Tensor, dst: int) -> T_co: ...
    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor) -> T_co: ...
    def gather(self, tensor: Tensor, gather_list: list[Tensor] | None, dst: int) -> T_co: ...
    def scatter(self, tensor: Tensor, scatter_list: list[Tensor] | None, src: int) -> T_co: ...
    def reduce_scatter(self, output: Tensor, input_list: list[Tensor]) -> T_co: ...
    def all_to_all(self, output_list: list[Tensor], input_list: list[Tensor]) -> T_co: ...
    def barrier(self) -> T_co: ...


def call(api: Collectives[T], kind: str, tensors: Tensors) -> T:
    """Call a collective by its name."""
    result: T = WORLD_CALLS[kind](api, tensors)
    return result


WORLD_CALLS: Mapping[str, Callable[[Collectives[Any], Tensors], Any]] = {
    "broadcast": lambda api, tensors: api.broadcast(tensors.mine, ROOT),
    "all_reduce": lambda api, tensors: api.all_reduce(tensors.mine),
    "reduce": lambda api, tensors: api.reduce(tensors.mine, ROOT),
    "all_gather": lambda api, tensors: api.all_gather(tensors.outputs, tensors.mine),
    "gather": lambda api, tensors: api.gather(tensors.mine, tensors.outputs if tensors.is_root else None, ROOT),
    "scatter": lambda api, tensors: api.scatter(tensors.mine, tensors.inputs if tensors.is_root else None, ROOT),
    "reduce_scatter": lambda api, tensors: api.reduce_scatter(tensors.mine, tensors.inputs),
    "all_to_all": lambda api, tensors: api.all_to_all(tensors.outputs, tensors.inputs),
    "barrier": lambda api, tensors: api.barrier(),
}
