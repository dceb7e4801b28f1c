"""Hear the facts of all members, in one collective: the moment in which a step counts."""

from __future__ import annotations

import torch

from ...wire.messages import decode, encode
from ...world.world import World
from .facts import Facts

INLINE_BYTES = 1020
LENGTH_BYTES = 4


def exchange(world: World, facts: Facts) -> list[Facts]:
    """Return the facts of all ranks, in their order. Raises the world's error.

    Who returns knows that every rank has called this, so that every rank's gradients were complete.
    """
    packed = encode(facts)
    rows = _gather(world, packed[:INLINE_BYTES], len(packed), INLINE_BYTES)
    longest = max(_length(row) for row in rows)
    if longest > INLINE_BYTES:  # rare; all know, so all gather again
        rows = _gather(world, packed, len(packed), longest)
    return [decode(Facts, bytes(row[LENGTH_BYTES : LENGTH_BYTES + _length(row)].tolist())) for row in rows]


def _gather(world: World, packed: bytes, length: int, size_bytes: int) -> list[torch.Tensor]:
    content = length.to_bytes(LENGTH_BYTES, "little") + packed
    mine = torch.zeros(LENGTH_BYTES + size_bytes, dtype=torch.uint8)
    mine[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    mine = mine.to(world.device)
    rows = list(mine.new_empty(world.world_size, mine.numel()).unbind())
    world.wait_thread(world.start_all_gather(rows, mine, None), None, None)
    return [row.cpu() for row in rows]


def _length(row: torch.Tensor) -> int:
    return int.from_bytes(bytes(row[:LENGTH_BYTES].tolist()), "little")
