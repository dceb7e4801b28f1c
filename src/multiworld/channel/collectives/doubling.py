"""Collectives in which the distance between partners doubles: the fewest steps, for small tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .chunks import size_bytes
from .port import Port
from .reduction import AnyReduceOp, combine, copy, finalize


async def doubling_all_reduce(port: Port, tensor: Tensor, op: AnyReduceOp) -> None:
    """Reduce a flat tensor in place by recursive doubling.

    Both partners compute the same: the lower ranks' part is always the left operand, so all ranks agree on every bit.
    When the size is not a power of two, the first ranks pair up and the odd one of each pair works for both::

        size 6:   0─1   2─3   4   5      fold: 0 into 1, 2 into 3
                    └──┬──┘   └─┬─┘      distance 1
                       └───┬────┘        distance 2, then 1 hands the result to 0, and 3 to 2
    """
    rank = port.rank
    num_workers = 1 << (port.size.bit_length() - 1)
    num_folded = port.size - num_workers
    folded = rank < 2 * num_folded
    if folded and rank % 2 == 0:
        await port.send(tensor, rank + 1)
        await port.recv(tensor, rank + 1)
        return
    arrived = torch.empty_like(tensor)
    if folded:
        await port.recv(arrived, rank - 1)
        await port.compute(partial(combine, arrived, tensor, tensor, op), size_bytes(tensor))
    worker = rank // 2 if folded else rank - num_folded
    distance = 1
    while distance < num_workers:
        other = worker ^ distance
        partner = 2 * other + 1 if other < num_folded else other + num_folded
        receiving = port.recv(arrived, partner)
        await port.send(tensor, partner)
        await receiving
        left, right = (arrived, tensor) if partner < rank else (tensor, arrived)
        await port.compute(partial(combine, left, right, tensor, op), size_bytes(tensor))
        distance *= 2
    await port.compute(partial(finalize, tensor, op, port.size), size_bytes(tensor))
    if folded:
        await port.send(tensor, rank - 1)


async def bruck_all_gather(port: Port, outputs: Sequence[Tensor], own: Tensor) -> None:
    """Gather flat tensors of one length by Bruck's algorithm: block ``i`` of the buffer is from rank ``rank + i``.

    With ``d`` blocks there, they go to rank ``rank - d`` while ``d`` more come from ``rank + d`` (the last time fewer).
    """
    rank, size, length = port.rank, port.size, own.numel()
    buffer = torch.empty(size * length, dtype=own.dtype)
    copy(own, buffer[:length])
    there = 1
    while there < size:
        coming = min(there, size - there)
        receiving = port.recv(buffer[there * length : (there + coming) * length], (rank + there) % size)
        await port.send(buffer[: coming * length], (rank - there) % size)
        await receiving
        there += coming
    await port.compute(partial(_unpack, buffer, outputs, rank), size_bytes(buffer))


async def dissemination_barrier(port: Port) -> None:
    """Exchange empty messages at distances 1, 2, 4 …: afterwards each rank has heard, directly or not, from all."""
    token = torch.empty(0, dtype=torch.uint8)
    distance = 1
    while distance < port.size:
        receiving = port.recv(token, (port.rank - distance) % port.size)
        await port.send(token, (port.rank + distance) % port.size)
        await receiving
        distance *= 2


def _unpack(buffer: Tensor, outputs: Sequence[Tensor], first_rank: int) -> None:
    for block, source in enumerate(buffer.view(len(outputs), outputs[0].numel()).unbind()):
        copy(source, outputs[(first_rank + block) % len(outputs)])
