"""All members hear the facts of all, however long they are and however many members there are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from multiworld.training.engine.commit import exchange
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.gathering import INLINE_BYTES, SUMMED_BYTES, gather
from multiworld.world.world import World

ROW_BYTES = INLINE_BYTES + 4
FEW, MANY = 3, SUMMED_BYTES // ROW_BYTES + 1


class Meeting:
    """What the members of a world bring to each collective; the last one works for all."""

    def __init__(self, size: int) -> None:
        self.brought: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def hold(self, rank: int, brings: Any, take: Callable[[list[Any]], object]) -> None:
        self.brought[rank] = brings
        self._barrier.wait(10)
        brought = list(self.brought)
        self._barrier.wait(10)
        take(brought)
        self._barrier.wait(10)


class MemberWorld:
    """One member's end of a meeting: the part of ``World`` that a commit uses."""

    device = torch.device("cpu")

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.world_size = meeting, rank, len(meeting.brought)
        self.calls: list[str] = []

    def start_all_reduce(self, tensor: Tensor, op: Any, timeout_s: float | None) -> Callable[[], None]:
        self.calls.append("all_reduce")
        take: Callable[[list[Any]], object] = lambda brought: tensor.copy_(sum(brought))  # noqa: E731
        return lambda: self._meeting.hold(self.rank, tensor.clone(), take)

    def start_all_gather(self, rows: list[Tensor], mine: Tensor, timeout_s: float | None) -> Callable[[], None]:
        self.calls.append("all_gather")

        def take(brought: list[Any]) -> None:
            for row, each in zip(rows, brought, strict=True):
                row.copy_(each)

        return lambda: self._meeting.hold(self.rank, mine.clone(), take)

    def wait_thread(self, operation: Callable[[], None], peer: int | None, timeout_s: float | None) -> None:
        operation()


def facts_of(rank: int, *, length: int) -> Facts:
    return Facts(step=7, member=f"member {rank}", done=(rank,), miscomputed="x" * length)


def exchanged(lengths: list[int]) -> tuple[list[list[Facts]], list[list[str]]]:
    """Return what each member has heard, and which collectives each has called."""
    meeting = Meeting(len(lengths))
    worlds = [MemberWorld(meeting, rank) for rank in range(len(lengths))]

    def member(rank: int) -> list[Facts]:
        return exchange(cast("World", worlds[rank]), facts_of(rank, length=lengths[rank]))

    with ThreadPoolExecutor(len(lengths)) as threads:
        return list(threads.map(member, range(len(lengths)))), [world.calls for world in worlds]


@pytest.mark.parametrize("size", [1, 2, FEW, MANY - 1])
def test_a_few_members_hear_short_facts_in_one_sum(size: int) -> None:
    heard, calls = exchanged(list(range(size)))
    assert heard == [[facts_of(rank, length=rank) for rank in range(size)]] * size
    assert calls == [["all_reduce"]] * size


def test_many_members_gather_short_facts() -> None:
    heard, calls = exchanged([0] * MANY)
    assert heard == [[facts_of(rank, length=0) for rank in range(MANY)]] * MANY
    assert calls == [["all_gather"]] * MANY


@pytest.mark.parametrize("long", [INLINE_BYTES, 5 * INLINE_BYTES, SUMMED_BYTES])
def test_one_members_long_facts_are_heard_whole(long: int) -> None:
    lengths = [0, long, 1]
    heard, calls = exchanged(lengths)
    assert heard == [[facts_of(rank, length=length) for rank, length in enumerate(lengths)]] * FEW
    assert {len(each) for each in calls} == {2}, "all gather once more"


def test_facts_that_just_fit_need_one_collective() -> None:
    from multiworld.wire.messages import encode

    room = INLINE_BYTES - len(encode(facts_of(0, length=1))) + 1
    heard, calls = exchanged([room, 0])
    assert heard[1][0] == facts_of(0, length=room)
    assert calls == [["all_reduce"]] * 2
    _, calls = exchanged([room + 1, 0])
    assert [len(each) for each in calls] == [2, 2]


def test_members_hear_nothing_of_one_that_says_nothing() -> None:
    meeting = Meeting(2)
    worlds = [cast("World", MemberWorld(meeting, rank)) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(gather, worlds, [b"", b"\0x\0"])) == [[b"", b"\0x\0"]] * 2
