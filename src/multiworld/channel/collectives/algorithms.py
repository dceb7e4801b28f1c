"""The collectives, as in ``torch.distributed``: which algorithm runs, by the size of the tensors and of the world.

All are step coroutines for ``multiworld.wire.progress.operation.drive``. They expect checked arguments: contiguous CPU
tensors, lists with one for each rank, all of one dtype and (but for all_to_all) of one shape. Results are the same, bit
for bit, on all ranks and on each run with the same input and number of ranks. If one raises, the contents of its output
tensors are undefined; its channel must cancel what is still open on its port.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from .chunks import compute_in_pieces, flatten, size_bytes
from .direct import direct_all_to_all, direct_gather, direct_reduce_scatter, direct_scatter
from .doubling import bruck_all_gather, dissemination_barrier, doubling_all_reduce
from .flat import flat_all_gather, flat_all_reduce, flat_barrier, flat_broadcast, flat_reduce, flat_reduce_scatter
from .port import Port, SharedSpace, SharedWork
from .reduction import AnyReduceOp, copy, premultiply, reduce_op_factor, reduce_op_name
from .ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from .tree import Tree, binomial_tree, chain, tree_broadcast, tree_reduce
from .tuning import TUNING, Tuning
from .validate import check_reduce_op


async def broadcast(port: Port, tensor: Tensor, src: int, *, tuning: Tuning = TUNING) -> None:
    """Copy rank ``src``'s tensor into everyone's."""
    if port.size == 1:
        return
    flat = flatten(tensor)
    if await _shared(port, flat, tuning.flat_broadcast_bytes, lambda space: flat_broadcast(space, flat, src)):
        return
    await tree_broadcast(port, flat, _tree(port, tensor, src, tuning), tuning)


async def all_reduce(port: Port, tensor: Tensor, op: AnyReduceOp = ReduceOp.SUM, *, tuning: Tuning = TUNING) -> None:
    """Reduce all ranks' tensors, in place on every rank."""
    check_reduce_op(op, tensor.dtype)
    flat, is_scaled = flatten(tensor), reduce_op_name(op) == "PREMUL_SUM"

    async def share(space: SharedSpace) -> None:
        if is_scaled:
            premultiply(flat, flat, reduce_op_factor(op))
        await flat_all_reduce(space, flat, op)

    if await _shared(port, flat, tuning.flat_reduce_bytes, share):
        return
    if is_scaled:
        await _premultiply(port, flat, flat, op)
    if port.size == 1:
        return
    # Doubling computes every element on every rank. Processors of different kinds round a complex product differently.
    computed_alike = not (tensor.is_complex() and reduce_op_name(op) == "PRODUCT")
    if computed_alike and size_bytes(flat) <= tuning.doubling_bytes:
        await doubling_all_reduce(port, flat, op)
    else:
        await ring_all_reduce(port, flat, op, tuning)


async def reduce(
    port: Port, tensor: Tensor, dst: int, op: AnyReduceOp = ReduceOp.SUM, *, tuning: Tuning = TUNING
) -> None:
    """Reduce all ranks' tensors into rank ``dst``'s; the others' are not changed."""
    check_reduce_op(op, tensor.dtype)
    flat, is_scaled = flatten(tensor), reduce_op_name(op) == "PREMUL_SUM"

    def scaled() -> Tensor:
        return flat if port.rank == dst or not is_scaled else torch.empty_like(flat)

    async def share(space: SharedSpace) -> None:
        into = scaled()
        if is_scaled:
            premultiply(flat, into, reduce_op_factor(op))
        await flat_reduce(space, into, dst, op)

    if await _shared(port, flat, tuning.flat_reduce_bytes, share):
        return
    into = scaled()
    if is_scaled:
        await _premultiply(port, flat, into, op)
    if port.size > 1:
        await tree_reduce(port, into, _tree(port, tensor, dst, tuning), op, tuning)


async def all_gather(port: Port, tensors: Sequence[Tensor], tensor: Tensor, *, tuning: Tuning = TUNING) -> None:
    """Copy rank ``r``'s ``tensor`` into everyone's ``tensors[r]``. ``tensor`` may be the own one of ``tensors``."""
    outputs, own = [flatten(each) for each in tensors], flatten(tensor)
    if port.size == 1:
        await compute_in_pieces(port, copy, own, outputs[0])
        return
    if await _shared(port, own, tuning.flat_gather_bytes, lambda space: flat_all_gather(space, outputs, own)):
        return
    if port.size > 3 and size_bytes(own) <= tuning.bruck_bytes:  # up to three ranks, a ring takes no more steps
        await bruck_all_gather(port, outputs, own)
    else:
        await ring_all_gather(port, outputs, own, tuning)


async def gather(port: Port, tensor: Tensor, gather_list: Sequence[Tensor] | None, dst: int) -> None:
    """Copy rank ``r``'s ``tensor`` into ``gather_list[r]`` of rank ``dst``; elsewhere the list is None or empty."""
    outputs = [flatten(each) for each in gather_list] if gather_list else None
    await direct_gather(port, flatten(tensor), outputs, dst)


async def scatter(port: Port, tensor: Tensor, scatter_list: Sequence[Tensor] | None, src: int) -> None:
    """Copy ``scatter_list[r]`` of rank ``src`` into rank ``r``'s ``tensor``; elsewhere the list is None or empty."""
    inputs = [flatten(each) for each in scatter_list] if scatter_list else None
    await direct_scatter(port, flatten(tensor), inputs, src)


async def reduce_scatter(
    port: Port, output: Tensor, input_list: Sequence[Tensor], op: AnyReduceOp = ReduceOp.SUM, *, tuning: Tuning = TUNING
) -> None:
    """Reduce all ranks' ``input_list[r]`` into rank ``r``'s ``output``, which may be its own ``input_list[r]``."""
    check_reduce_op(op, output.dtype)
    target, inputs = flatten(output), [flatten(each) for each in input_list]
    is_scaled = reduce_op_name(op) == "PREMUL_SUM"

    async def share(space: SharedSpace) -> None:
        scaled = [torch.empty_like(each) if is_scaled else each for each in inputs]
        for each, into in zip(inputs, scaled, strict=True) if is_scaled else ():
            premultiply(each, into, reduce_op_factor(op))
        await flat_reduce_scatter(space, target, scaled, op)

    if await _shared(port, target, tuning.flat_scatter_bytes, share):
        return
    if is_scaled:
        scaled = [torch.empty_like(each) for each in inputs]
        for each, into in zip(inputs, scaled, strict=True):
            await _premultiply(port, each, into, op)
        inputs = scaled
    if port.size == 1:
        await compute_in_pieces(port, copy, inputs[0], target)
    elif size_bytes(target) <= tuning.exchange_bytes:
        await direct_reduce_scatter(port, target, inputs, op)
    else:
        await ring_reduce_scatter(port, target, inputs, op, tuning)


async def all_to_all(port: Port, output_list: Sequence[Tensor], input_list: Sequence[Tensor]) -> None:
    """Copy rank ``s``'s ``input_list[r]`` into rank ``r``'s ``output_list[s]``; each pair of ranks has a shape."""
    await direct_all_to_all(port, [flatten(each) for each in output_list], [flatten(each) for each in input_list])


async def barrier(port: Port) -> None:
    """End once every rank has begun."""
    if not (port.size > 1 and await port.share(flat_barrier, 0)):
        await dissemination_barrier(port)


async def _shared(port: Port, tensor: Tensor, more_than_bytes: int, work: SharedWork) -> bool:
    """Let ``work`` use the memory that the ranks share, if they do and the tensor is worth it. The same on all ranks.

    Calls take turns in the order in which they come here: every collective does so before it waits for anything.
    """
    num_bytes = size_bytes(tensor)
    return port.size > 1 and num_bytes > more_than_bytes and await port.share(work, num_bytes)


def _tree(port: Port, tensor: Tensor, root: int, tuning: Tuning) -> Tree:
    shape = binomial_tree if size_bytes(tensor) <= tuning.binomial_bytes else chain
    return shape(port.rank, root, port.size)


async def _premultiply(port: Port, tensor: Tensor, into: Tensor, op: AnyReduceOp) -> None:
    await compute_in_pieces(port, partial(premultiply, factor=reduce_op_factor(op)), tensor, into)
