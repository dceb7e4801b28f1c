"""Groups of equal size, or by enumeration: all processes call, and each gets the one that it is in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ..errors import InvalidValueError
from .default import new_group
from .process_group import AnyGroup, GroupMember, ProcessGroup
from .ranks import get_process_group_ranks, get_rank

Groups = tuple[ProcessGroup | GroupMember, list[ProcessGroup | GroupMember]]


def new_subgroups(
    group_size: int,
    group: AnyGroup = None,
    *,
    timeout: timedelta | float | None = None,
    timeout_s: float | None = None,
    backend: str | None = None,
) -> Groups:
    """Cut the members of ``group`` (None: all processes) into groups of ``group_size``, in the order of the ranks.

    Return the group of this process, and all of them (``NON_GROUP_MEMBER`` where it is in none). All processes of the
    program call it, as they do ``new_group``. Raises ValueError for a size that does not divide the number of members.
    """
    ranks = get_process_group_ranks(group)
    if type(group_size) is not int or group_size < 1 or len(ranks) % group_size:
        raise InvalidValueError(f"group_size={group_size!r} does not divide {len(ranks)} processes into equal groups")
    cut = [ranks[first : first + group_size] for first in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(cut, timeout=timeout, timeout_s=timeout_s, backend=backend)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    *,
    timeout: timedelta | float | None = None,
    timeout_s: float | None = None,
    backend: str | None = None,
) -> Groups:
    """As ``new_subgroups``, of the ranks that are named. Raises ValueError for a rank in two of them, or for none."""
    named = [rank for ranks in ranks_per_subgroup_list for rank in ranks]
    twice = sorted({rank for rank in named if named.count(rank) > 1})
    if not named or twice:
        problem = f"the ranks {twice} are in several groups" if twice else "there are no ranks"
        raise InvalidValueError(f"ranks_per_subgroup_list={ranks_per_subgroup_list!r}: {problem}")
    groups: list[ProcessGroup | GroupMember] = []
    own: ProcessGroup | GroupMember = GroupMember.NON_GROUP_MEMBER
    for ranks in ranks_per_subgroup_list:
        groups.append(new_group(ranks, timeout=timeout, timeout_s=timeout_s, backend=backend))
        if get_rank() in ranks:
            own = groups[-1]
    return own, groups
