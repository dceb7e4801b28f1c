"""A group: some of the program's processes, in a world of their own, known by their ranks in the whole program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum

from ..world.operations.arguments import check_seconds
from ..world.world import World


class GroupMember(Enum):
    """What may stand for a group besides a ``ProcessGroup``."""

    WORLD = "all processes"
    NON_GROUP_MEMBER = "a group that this process is not in"

    def __repr__(self) -> str:
        return f"GroupMember.{self.name}"


class ProcessGroup:
    """Made by ``new_group``. Its ranks are those in the whole program; those in its ``world`` are their places here."""

    def __init__(self, world: World, ranks: Sequence[int], timeout_s: float | None) -> None:
        self.world, self.ranks, self.timeout_s = world, tuple(ranks), timeout_s
        self.over = ""
        """Why it cannot be used any more, if that is so."""
        self._places = {rank: place for place, rank in enumerate(ranks)}

    def __repr__(self) -> str:
        return f"<ProcessGroup of ranks {list(self.ranks)}: {self.world!r}>"

    def member(self, rank: int, name: str) -> int:
        """Return the world's rank of a member; raises TypeError or ValueError for anything else."""
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise TypeError(f"{name} must be a rank (int), got {rank!r}")
        place = self._places.get(rank)
        if place is None:
            raise ValueError(f"{name}={rank} is not in this group: its ranks are {_shown(self.ranks)}")
        return place

    def peer(self, rank: int, name: str) -> int:
        """As ``member``, for any but this process."""
        place = self.member(rank, name)
        if place == self.world.rank:
            raise ValueError(f"{name}={rank} is this process itself; send to and receive from other ranks")
        return place

    def deadline(self, timeout_s: float | None) -> float | None:
        """Return an operation's deadline: its own, else the group's. Infinite: none."""
        if timeout_s is None:
            timeout_s = self.timeout_s
        return None if timeout_s == math.inf else timeout_s


AnyGroup = ProcessGroup | GroupMember | None
"""What the functions of this package take as ``group``; None is all processes, too."""

MAX_SHOWN = 16


def check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None:
        check_seconds(timeout_s, "timeout_s", "of seconds or None")


def deadline_of(timeout: timedelta | float | None, timeout_s: float | None) -> float | None:
    """Return the deadline in seconds, given by either name: ``timeout`` is that of ``torch.distributed``.

    Raises ValueError or TypeError for what is no positive time, and for both at once.
    """
    if timeout is not None:
        if timeout_s is not None:
            raise ValueError(f"timeout={timeout} and timeout_s={timeout_s} are the same: pass one of them")
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    check_timeout(timeout_s)
    return timeout_s


def _shown(ranks: Sequence[int]) -> str:
    if len(ranks) <= MAX_SHOWN:
        return str(list(ranks))
    return f"[{', '.join(map(str, ranks[:MAX_SHOWN]))}, … {len(ranks)} in all]"
