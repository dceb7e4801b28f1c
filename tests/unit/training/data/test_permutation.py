"""Shuffles that are computed place by place."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from multiworld.training.data.permutation import DRAWN_SIZE, Permutation

HUGE = [76900294, 98812590, 46707275, 27675022]
SMALL = [9, 0, 6, 5, 7, 4, 8, 2, 3, 1]


@pytest.mark.parametrize("size", [1, 2, 3, 10, DRAWN_SIZE, DRAWN_SIZE + 1, 10_007])
def test_each_number_stands_at_one_place(size: int) -> None:
    permutation = Permutation(size, "seed", 3)
    assert len(permutation) == size
    assert sorted(permutation[place] for place in range(size)) == list(range(size))


def test_places_of_a_huge_shuffle_are_computed_alone_and_the_same_everywhere() -> None:
    # Written down: another release must not give another order, as a training that goes on would mix the two.
    assert [Permutation(100_000_000, "samples", 0, 0)[place] for place in range(4)] == HUGE
    assert [Permutation(10, "samples", 0, 0)[place] for place in range(10)] == SMALL


def test_another_key_gives_another_order() -> None:
    orders = {
        tuple(Permutation(10_000, "samples", seed, epoch)[place] for place in range(5))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_all_orders_of_four_are_equally_frequent() -> None:
    num = 6_000
    counts = Counter(tuple(Permutation(4, seed)[place] for place in range(4)) for seed in range(num))
    expected = num / math.factorial(4)
    chi_squared = sum((counts[order] - expected) ** 2 / expected for order in itertools.permutations(range(4)))
    assert chi_squared < 49.7  # 23 degrees of freedom: one seed in 1,000 would be above


def test_places_and_numbers_of_a_network_do_not_go_together() -> None:
    size, bins, num = 10_007, 16, 4
    counts = Counter(
        (place * bins // size, number * bins // size)
        for seed in range(num)
        for place, number in enumerate(map(Permutation(size, seed).__getitem__, range(size)))
    )
    expected = num * size / bins**2
    chi_squared = sum((counts[cell] - expected) ** 2 / expected for cell in itertools.product(range(bins), range(bins)))
    assert chi_squared < 297.0  # 225 degrees of freedom: one in 1,000


def test_what_is_outside_is_refused() -> None:
    with pytest.raises(IndexError, match="place 10 is outside of a permutation of 10 numbers"):
        Permutation(10, 0)[10]
    with pytest.raises(ValueError, match="a permutation of 0 numbers is impossible"):
        Permutation(0, 0)
