"""Who is who: ranks and sizes of groups."""

from __future__ import annotations

from .default import find_group
from .process_group import AnyGroup, GroupMember


def is_available() -> bool:
    """Whether there is process-group mode here: always."""
    return True


def get_rank(group: AnyGroup = None) -> int:
    """Return this process's rank in the group; -1 if it is not a member."""
    return -1 if group is GroupMember.NON_GROUP_MEMBER else find_group(group).world.rank


def get_world_size(group: AnyGroup = None) -> int:
    """Return how many processes are in the group; -1 if this one is not."""
    return -1 if group is GroupMember.NON_GROUP_MEMBER else find_group(group).world.world_size


def get_num_processes(group: AnyGroup = None) -> int:
    """As ``get_world_size``: its first name."""
    return get_world_size(group)


def get_backend(group: AnyGroup = None) -> str:
    """Return the name of the group's channel."""
    return find_group(group).world.backend


def get_process_group_ranks(group: AnyGroup = None) -> list[int]:
    """Return the members' ranks in the whole program, in the order of their ranks in the group."""
    return list(find_group(group).ranks)


def get_group_rank(group: AnyGroup, global_rank: int) -> int:
    """Return a member's rank in the group; ValueError if it is not one."""
    return find_group(group).member(global_rank, "global_rank")


def get_global_rank(group: AnyGroup, group_rank: int) -> int:
    """Return the rank in the whole program of the group's member with that rank there; ValueError if there is none."""
    ranks = find_group(group).ranks
    if not isinstance(group_rank, int) or isinstance(group_rank, bool):
        raise TypeError(f"group_rank must be a rank (int), got {group_rank!r}")
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"group_rank={group_rank}: the group's own ranks are 0 to {len(ranks) - 1}")
    return ranks[group_rank]
