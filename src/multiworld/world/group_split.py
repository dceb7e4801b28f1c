"""Form a world of some members of another one, for a subgroup of its process group."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..errors import InvalidTypeError, InvalidValueError
from ..wire.waiting import wait_blocking

if TYPE_CHECKING:
    from .world import World

__all__ = ["check_members", "check_split", "form_subworld", "subworld_name"]

MAX_NAME = 200  # of a world


def form_subworld(world: World, ranks: Sequence[int], number: int, timeout_s: float) -> tuple[World, list[int]] | None:
    """Agree with all ranks of the world, then form it; return it and the ranks of its members in their order.

    None on a rank that is not among them. ``number`` counts the calls on this world. Blocks.
    """
    members = check_members(ranks, world.world_size)
    mine = torch.zeros(1 + world.world_size, dtype=torch.int64)
    mine[0] = number
    mine[[1 + rank for rank in members]] = 1
    calls = [torch.empty_like(mine, device=world.device) for _ in range(world.world_size)]
    gathering = world.start_all_gather(calls, mine.to(world.device), timeout_s)
    world.wait_thread(gathering, None, timeout_s)
    records = [call.tolist() for call in calls]
    check_split([[rank for rank, is_in in enumerate(record[1:]) if is_in] for record in records])
    if world.rank not in members:
        return None
    name = subworld_name(world.name, world.generation, max(record[0] for record in records), members[0])
    return wait_blocking(world.start_beside(name, members.index(world.rank), len(members), timeout_s)), members


def check_members(ranks: Sequence[int], world_size: int) -> list[int]:
    """Return the ranks of a subgroup in ascending order, as c10d has them."""
    if isinstance(ranks, str | bytes) or not isinstance(ranks, Sequence):
        raise InvalidTypeError(f"ranks must be a list of ranks (ints), got {ranks!r}")
    if not ranks:
        raise InvalidValueError("ranks=[]: a group has at least one member")
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise InvalidTypeError(f"ranks must be a list of ranks (ints), but holds {rank!r}")
        if not 0 <= rank < world_size:
            raise InvalidValueError(f"ranks={list(ranks)}: {rank} is not one of the ranks 0 to {world_size - 1}")
    if len(set(ranks)) < len(ranks):
        raise InvalidValueError(f"ranks={list(ranks)}: a rank is named twice")
    return sorted(ranks)


def check_split(calls: Sequence[list[int]]) -> None:
    """Raise InvalidValueError, on all ranks alike, unless all members of each subgroup mean the same one.

    ``calls[rank]`` are the ranks that it has named.
    """
    for rank, members in enumerate(calls):
        if rank not in members:
            continue
        for member in members:
            if calls[member] != members:
                raise InvalidValueError(
                    f"rank {rank} splits off {members}, but rank {member} splits off {calls[member]}: all members of a "
                    "subgroup name the same ranks"
                )


def subworld_name(name: str, generation: int, number: int, first: int) -> str:
    """Return a name that no other subgroup of any generation has."""
    suffix = f".{generation}.{number}.{first}"
    if len(name) + len(suffix) > MAX_NAME:
        name = f"{name[: MAX_NAME - len(suffix) - 9]}.{zlib.crc32(name.encode()):08x}"
    return name + suffix
