"""Collectives through memory that all ranks map: each rank lays its tensor open in its own area, and reads the others'.

An area has two halves. A large tensor goes through them in pieces, in turn::

    write piece k into my half k % 2 │ barrier │ read the others' │ write piece k + 1 into the other half │ barrier │ …

Whoever writes piece ``k + 2`` has passed barrier ``k + 1``, which nobody enters before it has read piece ``k``. The
first barrier of a call, before anything is written, ends what an earlier call may still read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .chunks import size_bytes, split_evenly
from .doubling import dissemination_barrier
from .port import Port, SharedSpace
from .reduction import AnyReduceOp, accumulate, combine, copy, finalize, grains

__all__ = ["flat_all_gather", "flat_all_reduce", "flat_broadcast", "flat_reduce", "flat_reduce_scatter"]

ALIGNMENT = 64


async def flat_broadcast(port: Port, space: SharedSpace, tensor: Tensor, src: int) -> None:
    """Copy rank ``src``'s flat tensor into everyone's."""
    await dissemination_barrier(port)
    for number, piece in enumerate(_pieces(tensor, space.half_bytes)):
        area = space.area(src, number % 2, piece)
        if port.rank == src:
            await port.compute(partial(copy, piece, area), size_bytes(piece))
        await dissemination_barrier(port)
        if port.rank != src:
            await port.compute(partial(copy, area, piece), size_bytes(piece))


async def flat_all_gather(port: Port, space: SharedSpace, outputs: Sequence[Tensor], own: Tensor) -> None:
    """Copy rank ``r``'s flat tensor into everyone's ``outputs[r]``."""
    await dissemination_barrier(port)
    columns = zip(*(_pieces(output, space.half_bytes) for output in outputs), strict=True)
    for number, (mine, pieces) in enumerate(zip(_pieces(own, space.half_bytes), columns, strict=True)):
        await port.compute(partial(copy, mine, space.area(port.rank, number % 2, mine)), size_bytes(mine))
        await dissemination_barrier(port)
        areas = [mine if rank == port.rank else space.area(rank, number % 2, mine) for rank in range(port.size)]
        await port.compute(partial(_copy_all, areas, pieces), port.size * size_bytes(mine))


async def flat_all_reduce(port: Port, space: SharedSpace, tensor: Tensor, op: AnyReduceOp) -> None:
    """Reduce a flat tensor in place. Each rank reduces its share of a piece; the others read it where it was made."""
    await _reduce_shares(port, space, tensor, op, reads_result=True)


async def flat_reduce(port: Port, space: SharedSpace, tensor: Tensor, dst: int, op: AnyReduceOp) -> None:
    """Reduce into rank ``dst``'s flat tensor; the others are not changed."""
    await _reduce_shares(port, space, tensor, op, reads_result=port.rank == dst)


async def flat_reduce_scatter(
    port: Port, space: SharedSpace, output: Tensor, inputs: Sequence[Tensor], op: AnyReduceOp
) -> None:
    """Reduce all ranks' ``inputs[rank]`` into the flat ``output``, which may be one of the inputs."""
    await dissemination_barrier(port)
    budget = space.half_bytes // port.size // ALIGNMENT * ALIGNMENT
    columns = list(zip(*(_pieces(each, budget) for each in inputs), strict=True))
    for number, (into, pieces) in enumerate(zip(_pieces(output, budget), columns, strict=True)):
        lie = [partial(space.area, half=number % 2, like=into, offset_bytes=budget * dst) for dst in range(port.size)]
        mine = [area(port.rank) for area in lie]
        await port.compute(partial(_copy_all, pieces, mine), port.size * size_bytes(into))
        await dissemination_barrier(port)
        parts = [lie[port.rank](rank) for rank in range(port.size)]
        await port.compute(partial(_reduce, parts, into, op), port.size * size_bytes(into))


async def _reduce_shares(
    port: Port, space: SharedSpace, tensor: Tensor, op: AnyReduceOp, *, reads_result: bool
) -> None:
    await dissemination_barrier(port)
    for number, piece in enumerate(_pieces(tensor, space.half_bytes)):
        areas = [space.area(rank, number % 2, piece) for rank in range(port.size)]
        await port.compute(partial(copy, piece, areas[port.rank]), size_bytes(piece))
        await dissemination_barrier(port)
        shares = [split_evenly(area, port.size) for area in areas]
        parts = [share[port.rank] for share in shares]
        await port.compute(partial(_reduce, parts, parts[port.rank], op), size_bytes(piece))
        await dissemination_barrier(port)
        if reads_result:
            reduced = [shares[rank][rank] for rank in range(port.size)]
            await port.compute(partial(_copy_all, reduced, split_evenly(piece, port.size)), size_bytes(piece))


def _pieces(tensor: Tensor, max_bytes: int) -> list[Tensor]:
    return split_evenly(tensor, max(1, -(-size_bytes(tensor) // (max_bytes - tensor.element_size()))))


def _copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        copy(source, target)


def _reduce(parts: Sequence[Tensor], into: Tensor, op: AnyReduceOp) -> None:
    """Combine in the order of the ranks; ``into`` may be one of the parts, and is written only where all were read."""
    for target, first, *rest in grains(into, *parts):
        if target.data_ptr() in {part.data_ptr() for part in rest[1:]}:
            total = torch.empty_like(target)
        else:
            total = target
        combine(first, rest[0], total, op)
        for part in rest[1:]:
            accumulate(total, part, op)
        finalize(total, op, len(parts))
        copy(total, target)
