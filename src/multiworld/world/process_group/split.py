"""Form a world of some members of another one, for a subgroup of its process group."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...errors import InvalidTypeError, InvalidValueError
from ...wire.progress.waiting import wait_blocking
from ..world import World

MAX_NAME = 200  # of a world
LEAST_S = 0.001  # a deadline that is over; what was there already is still found


@dataclass(frozen=True)
class Split:
    """What all ranks of a world have agreed on: the same for all members of one subgroup."""

    members: list[int]
    """The ranks in the subgroup of this rank, ascending; those that this rank has named if it is in none."""
    number: int
    """No two splits of a world have the same one."""
    is_kept: bool
    """All members hold the subworld of ``number`` from before, and use it: there is nothing to form."""


def agree_on_split(world: World, ranks: Sequence[int], number: int, kept: int, until: float) -> Split:
    """Hear from all ranks of the world which subgroup they mean. Blocks until then, or ``until`` (monotonic).

    ``number`` counts the calls on this world. ``kept``: the number of the subworld of these ranks that this rank has
    and can use; 0: none.
    """
    members = check_members(ranks, world.world_size)
    mine = torch.zeros(2 + world.world_size, dtype=torch.int64)
    mine[0], mine[1] = number, kept
    mine[[2 + rank for rank in members]] = 1
    calls = [torch.empty_like(mine, device=world.device) for _ in range(world.world_size)]
    timeout_s = left_s(until)
    gathering = world.start_all_gather(calls, mine.to(world.device), timeout_s)
    world.wait_thread(gathering, None, timeout_s)
    return agreed_split([call.tolist() for call in calls], world.rank)


def agreed_split(calls: Sequence[Sequence[int]], rank: int) -> Split:
    """Return what follows for ``rank`` from what all said: ``calls[rank]`` is its number, what it kept, who is in it.

    Pure. A subworld that one member has closed, or that has broken for one, is formed anew by all.
    """
    named = [[member for member, is_in in enumerate(call[2:]) if is_in] for call in calls]
    check_split(named)
    members = named[rank]
    if rank in members:
        kept = {calls[member][1] for member in members}
        if len(kept) == 1 and 0 not in kept:
            return Split(members, kept.pop(), is_kept=True)
    return Split(members, max(call[0] for call in calls), is_kept=False)


def form_subworld(world: World, split: Split, until: float) -> World:
    """Form the world of a subgroup with its other members. Blocks, until then at most."""
    members = split.members
    name = subworld_name(world.name, world.generation, split.number, members[0])
    return wait_blocking(world.start_beside(name, members.index(world.rank), len(members), left_s(until)))


def left_s(until: float) -> float:
    """Return the seconds until then, on the monotonic clock: a little, if it is over."""
    return max(LEAST_S, until - time.monotonic())


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
