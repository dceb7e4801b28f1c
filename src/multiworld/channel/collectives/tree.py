"""Broadcast and reduce along a tree of ranks: binomial for few bytes (few steps), a chain for many (full bandwidth).

In both, a large tensor travels in chunks, so that all levels of the tree work at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ...wire.progress.operation import Operation
from .chunks import ReceiveWindow, all_of, num_chunks, rotating_buffers, size_bytes, split_evenly
from .port import Port
from .reduction import AnyReduceOp, combine, finalize
from .tuning import Tuning


@dataclass(frozen=True)
class Tree:
    """One rank's place: its parent (None at the root) and its children, the one with the largest subtree first."""

    parent: int | None
    children: tuple[int, ...]


def binomial_tree(rank: int, root: int, size: int) -> Tree:
    """Return the place in the tree where, counted from the root, a parent is its child without the lowest set bit.

    ::

        0 ─┬─ 4 ─┬─ 6 ─── 7
           │     └─ 5
           ├─ 2 ─── 3
           └─ 1
    """
    place = (rank - root) % size
    lowest = place & -place if place else 1 << (size - 1).bit_length()
    parent = None if place == 0 else (place - lowest + root) % size
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return Tree(parent, tuple((place + step + root) % size for step in steps if place + step < size))


def chain(rank: int, root: int, size: int) -> Tree:
    """Return the place in the tree that has no branches: root, root + 1, and so on around."""
    place = (rank - root) % size
    parent = None if place == 0 else (rank - 1) % size
    return Tree(parent, ((rank + 1) % size,) if place + 1 < size else ())


async def tree_broadcast(port: Port, tensor: Tensor, tree: Tree, tuning: Tuning) -> None:
    """Receive a flat tensor from the parent, chunk by chunk, and hand each chunk on at once."""
    forwarded = port.size > 2  # with nobody to hand on to, cutting would only cost messages
    pieces = split_evenly(tensor, num_chunks(size_bytes(tensor), tuning) if forwarded else 1)
    window = None if tree.parent is None else ReceiveWindow(port, tree.parent, pieces, ahead=tuning.window)
    sends: list[Operation[None]] = []
    for piece in pieces:
        if window is not None:
            await window.next()
        sends += [port.send(piece, child) for child in tree.children]
    await all_of(sends)


async def tree_reduce(port: Port, tensor: Tensor, tree: Tree, op: AnyReduceOp, tuning: Tuning) -> None:
    """Combine the chunks of all children with our own and hand them up. Only the root's tensor is changed.

    Ranks in the middle combine in the buffers that they receive into: ``window + 1`` chunks per child.
    """
    pieces = split_evenly(tensor, num_chunks(size_bytes(tensor), tuning))
    num_buffers = tuning.window + 1
    windows = [
        ReceiveWindow(port, child, rotating_buffers(pieces, num_buffers), ahead=tuning.window)
        for child in tree.children
    ]
    sends: list[Operation[None]] = []
    for index, piece in enumerate(pieces):
        total = piece
        for position, window in enumerate(windows):
            arrived = await window.next()
            into = arrived if tree.parent is not None and position == 0 else total
            await port.compute(partial(combine, total, arrived, into, op), size_bytes(piece))
            total = into
        if tree.parent is None:
            await port.compute(partial(finalize, total, op, port.size), size_bytes(piece))
            continue
        send = port.send(total, tree.parent)
        sends.append(send)
        if windows:
            windows[0].hold(index + num_buffers, send)
    await all_of(sends)
