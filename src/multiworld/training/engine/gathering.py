"""Hand some bytes of each member to all members of a world, in one small collective where they are few."""

from __future__ import annotations

from typing import Final

import torch

from ...channel.base import ReduceOp
from ...world.world import World

INLINE_BYTES: Final = 1020
LENGTH_BYTES: Final = 4
SUMMED_BYTES: Final = 16 * 1024
"""Up to this size of all rows together one small all-reduce is quicker than an all-gather with a tensor for each."""


def gather(world: World, content: bytes) -> list[bytes]:
    """Return what each rank has given, in their order; lengths may differ. Raises the world's error.

    Who returns knows that every rank has called this.
    """
    rows = _gather(world, content[:INLINE_BYTES], len(content), INLINE_BYTES)
    longest = max(map(_length, rows))
    if longest > INLINE_BYTES:  # rare; all know, so all gather again
        rows = _gather(world, content, len(content), longest)
    return [bytes(row[LENGTH_BYTES : LENGTH_BYTES + _length(row)]) for row in rows]


def _gather(world: World, content: bytes, length: int, size_bytes: int) -> list[bytearray]:
    """Return a row of each rank: the length of all that it says, and the first ``size_bytes`` of that."""
    row = (length.to_bytes(LENGTH_BYTES, "little") + content).ljust(LENGTH_BYTES + size_bytes, b"\0")
    if len(row) * world.world_size <= SUMMED_BYTES:
        return _sum_up(world, row)
    mine = torch.frombuffer(bytearray(row), dtype=torch.uint8).to(world.device)
    rows = list(mine.new_empty(world.world_size, len(row)).unbind())
    world.wait_thread(world.start_all_gather(rows, mine, None), None, None)
    return [bytearray(each.cpu().numpy().tobytes()) for each in rows]


def _sum_up(world: World, row: bytes) -> list[bytearray]:
    """Gather rows as a sum of tables, in each of which the rows of the others are zero."""
    size_bytes = len(row)
    table = bytearray(size_bytes * world.world_size)
    table[world.rank * size_bytes : (world.rank + 1) * size_bytes] = row
    on_host = torch.frombuffer(table, dtype=torch.uint8)
    summed = on_host.to(world.device)  # itself, where it is there already
    world.wait_thread(world.start_all_reduce(summed, ReduceOp.SUM, None), None, None)
    if summed is not on_host:
        on_host.copy_(summed)
    return [table[start : start + size_bytes] for start in range(0, len(table), size_bytes)]


def _length(row: bytearray) -> int:
    return int.from_bytes(row[:LENGTH_BYTES], "little")
