"""Tests of what counts as the time that something needs."""

from __future__ import annotations

import contextlib

import pytest

from multiworld.training.profiles.stopwatch import Reading, Shortest, Stopwatch

BEGUN = Reading(waited_s=5.0, wall_s=100.0, computed_s=20.0)


@pytest.mark.parametrize(
    ("waited_s", "wall_s", "computed_s", "needed_s"),
    [
        (0.0, 3.0, 3.0, 3.0),  # nobody disturbs
        (2.0, 5.0, 3.0, 3.0),  # others had the processor meanwhile
        (0.0, 3.0, 1.0, 3.0),  # asleep, or other threads compute
        (2.0, 5.0, 1.0, 3.0),  # both
        (2.0, 3.0, 3.0, 3.0),  # the wait came between two clocks, so it is in one alone
    ],
)
def test_only_waits_for_a_processor_are_taken_off(
    waited_s: float, wall_s: float, computed_s: float, needed_s: float
) -> None:
    ended = Reading(BEGUN.waited_s + waited_s, BEGUN.wall_s + wall_s, BEGUN.computed_s + computed_s)
    assert ended.since(BEGUN) == pytest.approx(needed_s)


def test_a_watch_reads_clocks_that_go_on() -> None:
    with contextlib.closing(Stopwatch()) as watch:
        begun = watch.now()
        sum(range(100_000))
        ended = watch.now()
    assert 0.0 < ended.computed_s - begun.computed_s <= ended.since(begun)


def test_the_shortest_times_settle_when_none_is_shorter_for_a_while() -> None:
    shortest = Shortest(2)
    seen = []
    for times in [(5.0, 9.0), (4.0, 9.5), (3.99, 9.0), (8.0, 8.99), (4.5, 8.0)]:
        shortest.take(times)
        seen.append(shortest.in_vain)
    assert seen == [0, 0, 1, 2, 0]  # what is shorter by less than three hundredths does not count
    assert shortest.times_s == [3.99, 8.0]
