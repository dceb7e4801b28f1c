"""Who belongs to which subgroup, and how their worlds are called."""

from __future__ import annotations

from typing import Any

import pytest

from multiworld.world.process_group.mesh import rows_of
from multiworld.world.process_group.split import Split, agreed_split, check_members, check_split, subworld_name


def test_members_are_in_the_order_of_their_ranks() -> None:
    assert check_members([2, 0], 3) == [0, 2]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], "at least one"), ([0, 0], "twice"), ([3], "not one of the ranks 0 to 2"), ("01", "list"), ([True], "holds")],
)
def test_what_is_no_subgroup_is_refused(ranks: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        check_members(ranks, 3)


def test_each_names_its_own_subgroup_and_strangers_name_any() -> None:
    check_split([[0, 1], [0, 1], [2, 3], [2, 3]])
    check_split([[0, 1], [0, 1], [0, 1]])


def test_members_that_mean_different_subgroups_are_told() -> None:
    with pytest.raises(ValueError, match=r"rank 0 splits off \[0, 1\], but rank 1 splits off \[1, 2\]"):
        check_split([[0, 1], [1, 2], [1, 2]])


@pytest.mark.parametrize(("kept", "is_kept"), [((3, 3), True), ((0, 0), False), ((3, 0), False), ((3, 2), False)])
def test_a_subworld_is_kept_only_if_all_its_members_have_it(kept: tuple[int, int], is_kept: bool) -> None:
    """Else one would go on with it while the others wait for it to form a new one. The other subgroup goes its way."""
    calls = [[4, kept[0], 1, 1, 0, 0], [5, kept[1], 1, 1, 0, 0], [4, 3, 0, 0, 1, 1], [4, 3, 0, 0, 1, 1]]
    for rank in (0, 1):
        assert agreed_split(calls, rank) == Split([0, 1], 3 if is_kept else 5, is_kept)
    for rank in (2, 3):
        assert agreed_split(calls, rank) == Split([2, 3], 3, is_kept=True)


def test_a_rank_outside_of_the_subgroup_that_it_names_keeps_nothing() -> None:
    assert agreed_split([[1, 1, 1, 0], [1, 1, 1, 0]], 1) == Split([0], 1, is_kept=False)


def test_no_two_subgroups_have_one_name() -> None:
    names = {subworld_name(name, 1, 1, first) for name in ("a" * 200, "a" * 199) for first in (0, 2)}
    assert len(names) == 4
    assert max(map(len, names)) <= 200
    assert subworld_name("training", 3, 2, 0) == "training.3.2.0"


def test_a_mesh_has_a_row_for_each_dimension() -> None:
    assert rows_of(5, 8, (2, 4)) == [[1, 5], [4, 5, 6, 7]]
    assert rows_of(5, 8, (2, 2, 2)) == [[1, 5], [5, 7], [4, 5]]


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 8), (-2, -4)])
def test_a_shape_of_other_ranks_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be the 8 ranks"):
        rows_of(0, 8, shape)
