"""Collectives through memory that all ranks map: each rank lays its tensor open in its own area, and reads the others'.

A large tensor goes through the areas in pieces (see ``port.SharedSpace``). A small one is reduced whole by every rank,
which takes one meeting; of a large one each rank reduces its share, and the others read it where it was made.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .chunks import size_bytes, split_evenly
from .port import SharedSpace
from .reduction import AnyReduceOp, copy, reduce_parts

ALIGNMENT = 64
WHOLE_BYTES = 64 * 1024  # of all ranks together: up to here a second meeting costs more than to reduce everything


async def flat_barrier(space: SharedSpace) -> None:
    """End once every rank has begun."""
    space.begin_piece()
    await space.show()


async def flat_broadcast(space: SharedSpace, tensor: Tensor, src: int) -> None:
    """Copy rank ``src``'s flat tensor into everyone's."""
    for piece in _pieces(tensor, space.half_bytes):
        space.begin_piece()
        if space.rank == src:
            copy(piece, space.area(src, piece))
        await space.show()
        if space.rank != src:
            copy(space.area(src, piece), piece)


async def flat_all_gather(space: SharedSpace, outputs: Sequence[Tensor], own: Tensor) -> None:
    """Copy rank ``r``'s flat tensor into everyone's ``outputs[r]``."""
    columns = zip(*(_pieces(output, space.half_bytes) for output in outputs), strict=True)
    for mine, pieces in zip(_pieces(own, space.half_bytes), columns, strict=True):
        space.begin_piece()
        copy(mine, space.area(space.rank, mine))
        copy(mine, pieces[space.rank])
        await space.show()
        for rank, piece in enumerate(pieces):
            if rank != space.rank:
                copy(space.area(rank, mine), piece)


async def flat_all_reduce(space: SharedSpace, tensor: Tensor, op: AnyReduceOp) -> None:
    """Reduce a flat tensor in place."""
    if _is_small(space, tensor):
        await _reduce_whole(space, tensor, op, reads_result=True)
    else:
        await _reduce_shares(space, tensor, op, reads_result=True)


async def flat_reduce(space: SharedSpace, tensor: Tensor, dst: int, op: AnyReduceOp) -> None:
    """Reduce into rank ``dst``'s flat tensor; the others are not changed."""
    if _is_small(space, tensor):
        await _reduce_whole(space, tensor, op, reads_result=space.rank == dst)
    else:
        await _reduce_shares(space, tensor, op, reads_result=space.rank == dst)


async def flat_reduce_scatter(space: SharedSpace, output: Tensor, inputs: Sequence[Tensor], op: AnyReduceOp) -> None:
    """Reduce all ranks' ``inputs[rank]`` into the flat ``output``, which may be one of the inputs."""
    me, ranks = space.rank, range(space.size)
    budget = space.half_bytes // space.size // ALIGNMENT * ALIGNMENT
    columns = list(zip(*(_pieces(each, budget) for each in inputs), strict=True))
    for into, pieces in zip(_pieces(output, budget), columns, strict=True):
        space.begin_piece()
        for dst, piece in enumerate(pieces):
            if dst != me:
                copy(piece, space.area(me, piece, budget * dst))
        await space.show()
        reduce_parts([pieces[me] if src == me else space.area(src, into, budget * me) for src in ranks], [into], op)


async def _reduce_whole(space: SharedSpace, tensor: Tensor, op: AnyReduceOp, *, reads_result: bool) -> None:
    space.begin_piece()
    copy(tensor, space.area(space.rank, tensor))
    await space.show()
    if reads_result:
        parts = [tensor if rank == space.rank else space.area(rank, tensor) for rank in range(space.size)]
        reduce_parts(parts, [tensor], op)


async def _reduce_shares(space: SharedSpace, tensor: Tensor, op: AnyReduceOp, *, reads_result: bool) -> None:
    me, ranks = space.rank, range(space.size)
    for piece in _pieces(tensor, space.half_bytes):
        space.begin_piece()
        mine = split_evenly(piece, space.size)
        own = split_evenly(space.area(me, piece), space.size)
        for rank in ranks:
            if rank != me:
                copy(mine[rank], own[rank])
        await space.show()
        shares = [own if rank == me else split_evenly(space.area(rank, piece), space.size) for rank in ranks]
        parts = [mine[me] if rank == me else shares[rank][me] for rank in ranks]
        reduce_parts(parts, [own[me], mine[me]] if reads_result else [own[me]], op)
        await space.meet()
        if reads_result:
            for rank in ranks:
                if rank != me:
                    copy(shares[rank][rank], mine[rank])


def _is_small(space: SharedSpace, tensor: Tensor) -> bool:
    num_bytes = size_bytes(tensor)
    return num_bytes * space.size <= WHOLE_BYTES and num_bytes <= space.half_bytes


def _pieces(tensor: Tensor, max_bytes: int) -> list[Tensor]:
    max_numel = max_bytes // tensor.element_size()
    return split_evenly(tensor, max(1, -(-tensor.numel() // max_numel)))
