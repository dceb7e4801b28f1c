"""Waits double up to a bound, begin again after a success, and are cut at random where many try the same."""

from __future__ import annotations

import pytest

from multiworld.wire.backoff import BackOff


def test_waits_double_up_to_the_longest() -> None:
    back_off = BackOff(0.1, 1.0)
    assert [back_off.next_s() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_free_waits_come_first() -> None:
    back_off = BackOff(0.5, 30.0, num_free=2)
    assert [back_off.next_s() for _ in range(5)] == [0.0, 0.0, 0.5, 1.0, 2.0]


def test_after_a_success_it_begins_again() -> None:
    back_off = BackOff(1.0, 8.0)
    waits = [back_off.next_s() for _ in range(3)]
    assert (waits, back_off.num, back_off.last_s, back_off.coming_s) == ([1.0, 2.0, 4.0], 3, 4.0, 8.0)
    back_off.reset()
    assert (back_off.num, back_off.last_s, back_off.coming_s, back_off.next_s()) == (0, 0.0, 1.0, 1.0)


def test_a_random_number_cuts_a_wait_by_up_to_a_half() -> None:
    numbers = iter([0.0, 0.5, 1.0, 0.25])
    back_off = BackOff(1.0, 4.0, random=lambda: next(numbers))
    assert [back_off.next_s() for _ in range(4)] == [1.0, 1.5, 2.0, 3.5]
    assert back_off.last_s == 4.0


def test_it_stays_at_the_longest_for_ever() -> None:
    back_off = BackOff(0.001, 5.0)
    assert {back_off.next_s() for _ in range(5000)} == {min(5.0, 0.001 * 2**n) for n in range(14)}


@pytest.mark.parametrize(("first_s", "longest_s"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)])
def test_bounds_that_mean_nothing_are_refused(first_s: float, longest_s: float) -> None:
    with pytest.raises(ValueError, match="first_s <= longest_s"):
        BackOff(first_s, longest_s)
