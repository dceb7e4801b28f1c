"""Decide by which numbers c10d knows the members of a world: its *global ranks* of one group. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["global_ranks"]


def global_ranks(rank: int, default_ranks: Sequence[int | None], elsewhere: int) -> dict[int, int]:
    """Return ``{global rank: rank in the world}`` in the order of the latter, as process ``rank`` shall see it.

    ``default_ranks``: what each member is in the default group of its process, None where there is none. c10d asks for
    one's own rank in a group by one's rank in the default group, so that one is always in the answer, and right.
    ``elsewhere``: as many numbers from there on belong to nobody else.

    - Nobody has a default group: the numbers are the world's own.
    - All have one, and no two have the same number in it, as when all are in the same: the numbers are those.
    - Otherwise no numbering suits all: say, each process has a default group of its own, in which it is 0. Then each
      one knows itself by that number, and the others by ``elsewhere`` plus their rank. A constant as ``src=0`` means
      nobody else then; ``group_src=0`` is what to write. DTensor takes meshes of the same numbers for the same, so
      those of two groups must differ.
    """
    size = len(default_ranks)
    known = [number for number in default_ranks if number is not None]
    if len(known) == len(set(known)) == size:
        return {number: member for member, number in enumerate(known)}
    own = default_ranks[rank]
    if own is None:
        return {member: member for member in range(size)}
    return {own if member == rank else elsewhere + member: member for member in range(size)}
