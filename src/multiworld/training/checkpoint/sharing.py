"""Which member writes what of a checkpoint. Pure: all members decide alike, so nothing is said about it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def writers_of(members: Sequence[str], num_writers: int) -> tuple[str, ...]:
    """Return the members that write what all have, in their order; the first one completes the checkpoint."""
    return tuple(members[:num_writers])


def attempt_of(step: int, generation: int, writers: Sequence[str]) -> str:
    """Return what tells this try at a checkpoint from all others; ids of members are random, so it is unique."""
    return hashlib.sha256(repr((step, generation, tuple(writers))).encode()).hexdigest()[:12]


def deal(sizes: Sequence[int], num_writers: int) -> list[int]:
    """Return the writer of each tensor: the largest ones first, each to the one that has least (then the lowest)."""
    loads, owners = [0] * num_writers, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owner = loads.index(min(loads))
        owners[index] = owner
        loads[owner] += sizes[index]
    return owners
