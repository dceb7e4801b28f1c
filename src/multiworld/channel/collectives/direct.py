"""Collectives in which every tensor goes straight from its owner to its reader."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .chunks import all_of, compute_in_pieces, size_bytes
from .port import Port
from .reduction import AnyReduceOp, copy, reduce_parts


async def direct_gather(port: Port, own: Tensor, outputs: Sequence[Tensor] | None, dst: int) -> None:
    """Receive the flat tensors of all ranks into ``outputs`` at rank ``dst``."""
    if port.rank != dst:
        await port.send(own, dst)
        return
    assert outputs is not None, "gather without a list at its destination"
    receiving = [port.recv(output, src) for src, output in enumerate(outputs) if src != dst]
    await compute_in_pieces(port, copy, own, outputs[dst])
    await all_of(receiving)


async def direct_scatter(port: Port, output: Tensor, inputs: Sequence[Tensor] | None, src: int) -> None:
    """Send ``inputs`` of rank ``src`` to their ranks."""
    if port.rank != src:
        await port.recv(output, src)
        return
    assert inputs is not None, "scatter without a list at its source"
    sends = [port.send(piece, dst) for dst, piece in enumerate(inputs) if dst != src]
    await all_of(sends)  # before the copy: the output may be another rank's input
    await compute_in_pieces(port, copy, inputs[src], output)


async def direct_all_to_all(port: Port, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Send ``inputs[r]`` to each rank ``r``, and receive into ``outputs[r]`` from it."""
    rank, size = port.rank, port.size
    distances = range(1, size)  # everyone starts with its neighbour, so that nobody is everyone's first
    receiving = [port.recv(outputs[(rank - distance) % size], (rank - distance) % size) for distance in distances]
    sends = [port.send(inputs[(rank + distance) % size], (rank + distance) % size) for distance in distances]
    await compute_in_pieces(port, copy, inputs[rank], outputs[rank])
    await all_of((*receiving, *sends))


async def direct_reduce_scatter(port: Port, output: Tensor, inputs: Sequence[Tensor], op: AnyReduceOp) -> None:
    """Receive everyone's part for us, and combine them in the order of the ranks. Takes ``size`` times the output."""
    rank, size, length = port.rank, port.size, output.numel()
    rows = torch.empty(size, length, dtype=output.dtype).unbind()
    receiving = [port.recv(rows[src], src) for src in range(size) if src != rank]
    sends = [port.send(inputs[dst], dst) for dst in range(size) if dst != rank]
    copy(inputs[rank], rows[rank])
    await all_of((*receiving, *sends))
    await port.compute(partial(reduce_parts, rows, [output], op), size * size_bytes(output))
