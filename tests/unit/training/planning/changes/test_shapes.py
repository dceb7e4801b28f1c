"""Which sizes pipelines get after losses, as Oobleck's cases have it."""

from __future__ import annotations

from multiworld.training.planning.changes.shapes import borrowed, merged


def test_a_pipeline_that_is_still_large_enough_stays_as_it_is() -> None:
    assert borrowed([3, 2], [4, 2], 0, (2, 3, 4)) == [3, 2]


def test_a_pipeline_with_too_few_nodes_gets_some_of_the_largest() -> None:
    assert borrowed([1, 4, 3], [2, 4, 3], 0, (2, 3, 4)) == [2, 3, 3]
    assert borrowed([1, 2, 2], [2, 2, 2], 0, (2, 3)) is None


def test_what_is_left_of_a_pipeline_joins_another_or_is_shared_out() -> None:
    assert merged([1, 2, 3], [2, 2, 3], 0, (2, 3, 4)) == [3, 3]
    assert merged([3, 4, 4], [4, 4, 4], 0, (4, 5, 6)) == [5, 6]
    assert merged([1, 4], [4, 4], 0, (4,)) is None


def test_what_is_left_of_several_pipelines_becomes_one() -> None:
    assert merged([1, 1, 3], [2, 2, 3], 0, (2, 3)) == [3, 2]


def test_joined_nodes_fill_gaps_first() -> None:
    assert borrowed([3, 4, 2], [4, 4, 2], 2, (2, 3, 4, 5)) == [4, 4, 3]
    assert borrowed([0, 2], [2, 2], 1, (2, 3)) == [3]
