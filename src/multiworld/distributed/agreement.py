"""All processes agree on a new group before any of them waits for its members."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from ..world.world import World

__all__ = ["agree", "check_ranks"]


def check_ranks(ranks: Sequence[int] | None, world_size: int) -> list[int]:
    """Return the ranks of a new group in ascending order; None: all. Raises TypeError or ValueError."""
    if ranks is None:
        return list(range(world_size))
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Sequence):
        raise TypeError(f"ranks must be a list of ranks (ints), got {ranks!r}")
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise TypeError(f"ranks must be a list of ranks (ints), but holds {rank!r}")
        if not 0 <= rank < world_size:
            raise ValueError(f"ranks={list(ranks)}: {rank} is not one of the ranks 0 to {world_size - 1}")
    if not ranks:
        raise ValueError("ranks=[]: a group has at least one member; None stands for all processes")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"ranks={list(ranks)}: a rank is named twice")
    return sorted(ranks)


def agree(everyone: World, number: int, ranks: list[int], backend: str, timeout_s: float | None) -> int:
    """Compare the new group with what all others mean to make; return the highest ``number`` that any of them has.

    ValueError on each if they differ. Without this, processes that mean different groups would wait for each other,
    or form one that nobody meant.
    """
    mine = torch.zeros(2 + everyone.world_size, dtype=torch.int64)
    mine[0], mine[1] = number, zlib.crc32(backend.encode())
    mine[[2 + rank for rank in ranks]] = 1
    calls = [torch.empty_like(mine, device=everyone.device) for _ in range(everyone.world_size)]
    everyone.blocking.all_gather(calls, mine.to(everyone.device), timeout_s)
    records = [call.tolist() for call in calls]
    for rank, record in enumerate(records):
        theirs = [other for other, is_in in enumerate(record[2:]) if is_in]
        if theirs != ranks:
            raise ValueError(
                f"new_group({ranks}) was called here, but rank {rank} called new_group({theirs}) as the same: all "
                "processes make the same groups in the same order"
            )
        if record[1] != mine[1]:
            raise ValueError(f"new_group({ranks}): rank {rank} asks for another backend than {backend!r}")
    return max(int(record[0]) for record in records)
