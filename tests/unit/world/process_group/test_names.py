"""By which numbers c10d knows the members of a world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiworld.world.process_group.names import global_ranks

DEFAULT_RANKS = st.lists(st.none() | st.integers(0, 7), min_size=1, max_size=6)


def test_without_default_groups_the_numbers_are_the_worlds_own() -> None:
    assert [global_ranks(rank, [None, None, None], 100) for rank in range(3)] == [{0: 0, 1: 1, 2: 2}] * 3


def test_members_of_one_default_group_are_known_by_their_ranks_in_it() -> None:
    assert [global_ranks(rank, [5, 2, 7], 100) for rank in range(3)] == [{5: 0, 2: 1, 7: 2}] * 3


def test_where_each_process_has_a_default_group_of_its_own_each_knows_itself_by_that() -> None:
    assert global_ranks(0, [0, 0, 0], 100) == {0: 0, 101: 1, 102: 2}
    assert global_ranks(2, [0, 0, 0], 100) == {100: 0, 101: 1, 0: 2}


@pytest.mark.parametrize("default_ranks", [[None, 0], [0, None]])
def test_where_only_some_have_a_default_group_each_is_right_about_itself(default_ranks: list[int | None]) -> None:
    for rank, own in enumerate(default_ranks):
        assert global_ranks(rank, default_ranks, 100)[rank if own is None else own] == rank


@given(DEFAULT_RANKS, st.data())
def test_every_member_has_one_number_and_this_process_is_known_by_its_default_rank(
    default_ranks: list[int | None], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, len(default_ranks) - 1))
    numbers = global_ranks(rank, default_ranks, 100)
    assert list(numbers.values()) == list(range(len(default_ranks)))
    own = default_ranks[rank]
    assert own is None or numbers[own] == rank
