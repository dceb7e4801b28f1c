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
from .port import Port, SharedSpace
from .reduction import AnyReduceOp, accumulate, combine, copy, finalize, grains

__all__ = ["flat_all_gather", "flat_all_reduce", "flat_broadcast", "flat_reduce", "flat_reduce_scatter"]

ALIGNMENT = 64


async def flat_broadcast(port: Port, space: SharedSpace, tensor: Tensor, src: int) -> None:
    """Copy rank ``src``'s flat tensor into everyone's."""
    barrier = await port.barrier()
    for number, piece in enumerate(_pieces(tensor, space.half_bytes)):
        area = space.area(src, number % 2, piece)
        if port.rank == src:
            await port.compute(partial(copy, piece, area), size_bytes(piece))
        await barrier.meet()
        if port.rank != src:
            await port.compute(partial(copy, area, piece), size_bytes(piece))


async def flat_all_gather(port: Port, space: SharedSpace, outputs: Sequence[Tensor], own: Tensor) -> None:
    """Copy rank ``r``'s flat tensor into everyone's ``outputs[r]``."""
    barrier = await port.barrier()
    columns = zip(*(_pieces(output, space.half_bytes) for output in outputs), strict=True)
    for number, (mine, pieces) in enumerate(zip(_pieces(own, space.half_bytes), columns, strict=True)):
        await port.compute(partial(copy, mine, space.area(port.rank, number % 2, mine)), size_bytes(mine))
        await barrier.meet()
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
    barrier = await port.barrier()
    rank, ranks = port.rank, range(port.size)
    budget = space.half_bytes // port.size // ALIGNMENT * ALIGNMENT
    columns = list(zip(*(_pieces(each, budget) for each in inputs), strict=True))
    for number, (into, pieces) in enumerate(zip(_pieces(output, budget), columns, strict=True)):
        block = partial(space.area, half=number % 2, like=into)
        lent = [block(rank, offset_bytes=budget * dst) for dst in ranks if dst != rank]
        others = [piece for dst, piece in enumerate(pieces) if dst != rank]
        await port.compute(partial(_copy_all, others, lent), port.size * size_bytes(into))
        await barrier.meet()
        parts = [pieces[rank] if src == rank else block(src, offset_bytes=budget * rank) for src in ranks]
        await port.compute(partial(_reduce, parts, into, op), port.size * size_bytes(into))


async def _reduce_shares(
    port: Port, space: SharedSpace, tensor: Tensor, op: AnyReduceOp, *, reads_result: bool
) -> None:
    barrier = await port.barrier()
    rank, ranks = port.rank, range(port.size)
    for number, piece in enumerate(_pieces(tensor, space.half_bytes)):
        mine = split_evenly(piece, port.size)
        shares = [split_evenly(space.area(each, number % 2, piece), port.size) for each in ranks]
        lent = [(mine[each], shares[rank][each]) for each in ranks if each != rank]
        await port.compute(partial(_copy_pairs, lent), size_bytes(piece))
        await barrier.meet()
        parts = [mine[rank] if each == rank else shares[each][rank] for each in ranks]
        await port.compute(partial(_reduce, parts, shares[rank][rank], op), size_bytes(piece))
        await barrier.meet()
        if reads_result:
            reduced = [shares[each][each] for each in ranks]
            await port.compute(partial(_copy_all, reduced, mine), size_bytes(piece))


def _pieces(tensor: Tensor, max_bytes: int) -> list[Tensor]:
    return split_evenly(tensor, max(1, -(-size_bytes(tensor) // (max_bytes - tensor.element_size()))))


def _copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        copy(source, target)


def _copy_pairs(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for source, target in pairs:
        copy(source, target)


def _reduce(parts: Sequence[Tensor], into: Tensor, op: AnyReduceOp) -> None:
    """Combine in the order of the ranks; ``into`` may be one of the parts."""
    for target, first, second, *rest in grains(into, *parts):
        is_read_later = any(part.data_ptr() == target.data_ptr() for part in rest)
        total = torch.empty_like(target) if is_read_later else target
        combine(first, second, total, op)
        for part in rest:
            accumulate(total, part, op)
        finalize(total, op, len(parts))
        copy(total, target)
