"""A team of one process that does as a test says: no world, no store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from multiworld.errors import WorldBrokenError
from multiworld.training.engine.facts import Facts
from multiworld.training.recovery.records import Announcement, Generation, Member
from multiworld.training.recovery.team import Phase, Team


class FakeWorld:
    """Of one member: what it sums up is what it has given. ``error``: what each collective raises."""

    name, generation = "t.1", 1
    rank, world_size, device = 0, 1, torch.device("cpu")

    def __init__(self) -> None:
        self.was_aborted = False
        self.error: WorldBrokenError | None = None

    def start_all_reduce(self, tensor: Tensor, op: Any, timeout_s: float | None) -> None: ...

    def wait_thread(self, operation: None, peer: int | None, timeout_s: float | None) -> None:
        if self.error is not None:
            raise self.error

    def abort(self) -> None:
        self.was_aborted = True


class FakeReplica:
    """``others``: what the other processes of the replica say to each question; none, if it is empty."""

    def __init__(self) -> None:
        self.size = 1
        self.others: list[bool] = []

    def all_true(self, flag: bool) -> bool:
        return flag and (self.others.pop(0) if self.others else True)

    def check(self, error: BaseException | None = None) -> None:
        """None of its processes was lost."""

    def as_one(self, call: Callable[[], list[Facts]]) -> list[Facts]:
        return call()


class FakeMembership:
    """``come``: who waits to be admitted, as each look at the store finds it. ``num_raised``: of programs, before."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.newcomers: tuple[str, ...] = ()
        self.come: list[tuple[str, ...]] = []
        self.over: int | None = None
        self.limit: int | None = None
        self.generation: Generation | None = None
        self.raised: list[Announcement] = []

    def look_for_newcomers(self, every_s: float = 0.25) -> None:
        if self.come:
            self.newcomers = self.come.pop(0)

    def say_over(self, step: int) -> None:
        self.over = step

    def say_raised(self, announcement: Announcement) -> int:
        self.raised.append(announcement)
        return len(self.raised)


class FakeTeam:
    """``coming``: the generations or errors to which ``advance`` comes, one after the other."""

    def __init__(self, *names: str) -> None:
        members = tuple(Member(id=name, rank=rank, host="h") for rank, name in enumerate(names or ("a",)))
        self.world, self.replica = FakeWorld(), FakeReplica()
        self.shard_world = self.world
        self.membership = FakeMembership(members[0])
        self.generation = Generation(number=1, members=members)
        self.place, self.stands = 0, True
        self.error: WorldBrokenError | None = None
        self.coming: list[Generation | Exception] = []
        self.noted: list[WorldBrokenError] = []
        self.num_returns = 0
        """How often it came back as a newcomer."""
        self.num_meetings = 0
        self.left: list[int] = []
        """Places of members that left by what was agreed."""

    def advance(self, announce: Callable[[], Announcement], phase: Phase) -> Generation:
        announce()
        coming = self.coming.pop(0)
        if isinstance(coming, Exception):
            raise coming
        phase("agree", 0.0)
        self.generation = coming
        return coming

    def meet(self) -> None:
        self.num_meetings += 1
        if self.error is not None:
            raise self.error

    def leaves(self, places: Sequence[int], why: str = "") -> None:
        self.left.extend(places)

    def note(self, error: WorldBrokenError) -> None:
        self.noted.append(error)

    def become_newcomer(self) -> None:
        self.num_returns += 1

    def as_team(self) -> Team:
        return cast(Team, self)
