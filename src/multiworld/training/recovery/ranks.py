"""Give the members of a generation ranks that tell them apart. Pure.

A launcher numbers its processes anew when hosts are lost, and members keep the rank that they had when they joined. So
a process that comes may have the rank of a member that has been there for long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .records import Member


def told_apart(members: Sequence[Member], known: Collection[str], size: int) -> tuple[Member, ...]:
    """Return these members, in their order, with a rank of their own each.

    Who is ``known``, by id, keeps its rank. Of the others the first one with a rank has it; the rest get the smallest
    that are free. Replicas of ``size`` processes get ranks together, in which each process keeps its shard.
    """
    units = list(dict.fromkeys(each.unit for each in sorted(members, key=lambda each: each.id not in known)))
    wanted = {each.unit: each.rank // size for each in reversed(members)}
    index_of: dict[str, int] = {}
    for unit in units:
        if wanted[unit] not in index_of.values():
            index_of[unit] = wanted[unit]
    free = (index for index in range(2 * len(units)) if index not in set(index_of.values()))
    later = {unit: next(free) for unit in units if unit not in index_of}
    index_of |= later
    return tuple(replace(each, rank=index_of[each.unit] * size + each.rank % size) for each in members)
