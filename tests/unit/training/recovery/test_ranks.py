"""Each member of a generation has a rank of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiworld.training.recovery.ranks import told_apart
from multiworld.training.recovery.records import Member


def members(ranks: Sequence[int]) -> list[Member]:
    return [Member(id=chr(ord("a") + index), rank=rank, host="here") for index, rank in enumerate(ranks)]


def ranks(members: Sequence[Member]) -> list[int]:
    return [each.rank for each in members]


@pytest.mark.parametrize(
    ("before", "known", "after"),
    [
        ([0, 1, 2], "", [0, 1, 2]),
        ([3, 4, 5, 3, 4, 5], "abc", [3, 4, 5, 0, 1, 2]),
        ([3, 4, 5, 3, 4, 5], "def", [0, 1, 2, 3, 4, 5]),  # they are known, though they stand behind
        ([1, 1, 0], "a", [1, 2, 0]),
        ([7, 7], "", [7, 0]),
    ],
)
def test_a_rank_that_is_taken_gives_way_to_the_smallest_that_is_free(
    before: list[int], known: str, after: list[int]
) -> None:
    assert ranks(told_apart(members(before), known, 1)) == after


def test_processes_of_a_replica_keep_their_shards() -> None:
    pairs = [
        Member(id=f"{unit}{shard}", rank=2 + shard, host="here", replica=unit) for unit in "xy" for shard in (0, 1)
    ]
    assert ranks(told_apart(pairs, ("x0", "x1"), 2)) == [2, 3, 0, 1]


@given(st.lists(st.integers(0, 9), max_size=12), st.sets(st.sampled_from("abcdefghijkl")))
def test_all_have_another_rank_and_nobody_changes_without_need(before: list[int], known: set[str]) -> None:
    were = members(before)
    now = told_apart(were, known, 1)
    assert [each.id for each in now] == [each.id for each in were]
    assert len(set(ranks(now))) == len(now)
    for rank in set(before):
        claiming = [each.id for each in were if each.rank == rank]
        preferred = [each for each in claiming if each in known] or claiming
        assert next(each.id for each in now if each.rank == rank) in {*preferred[:1]}
