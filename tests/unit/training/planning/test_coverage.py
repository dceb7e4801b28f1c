"""Which numbers of nodes pipelines of some sizes can use."""

from __future__ import annotations

import pytest

from multiworld.training.planning.coverage import covers, most_pipelines, uncovered


@pytest.mark.parametrize("tolerate", [0, 1, 3])
@pytest.mark.parametrize("smallest", range(1, 9))
def test_sizes_from_the_smallest_to_less_than_twice_that_are_enough(smallest: int, tolerate: int) -> None:
    assert covers(range(smallest, 2 * smallest), smallest, tolerate, 60)


def test_a_count_that_no_sum_of_sizes_makes_is_named() -> None:
    assert uncovered((4, 5, 6), 4, 0, 20) == (7,)


def test_a_count_that_needs_fewer_larger_pipelines_is_named_too() -> None:
    assert uncovered((2, 5), 2, 1, 12) == (3, 5)
    assert uncovered((2, 5), 2, 2, 12) == (3, 5, 7)


def test_the_most_pipelines_use_the_nodes_exactly() -> None:
    assert most_pipelines((3, 4), 8) == [0, -1, -1, 1, 1, -1, 2, 2, 2]
