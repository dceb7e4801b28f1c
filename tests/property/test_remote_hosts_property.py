"""Ranks for hosts: all of them are given out, none twice, and what the user has fixed stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.elastic.hosts.shares import allot

named = st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=6)


@given(named, st.none() | st.integers(0, 40))
def test_all_ranks_are_given_out_or_the_line_is_refused(numbers: list[int | None], num_ranks: int | None) -> None:
    hosts = ",".join(f"h{index}" + (f":{number}" if number else "") for index, number in enumerate(numbers))
    fixed, num_open = sum(number or 0 for number in numbers), numbers.count(None)
    fits = num_ranks is None or (num_ranks >= fixed + num_open if num_open else num_ranks == fixed)
    try:
        shares = allot(hosts, num_ranks)
    except ValueError:
        assert not fits
        return
    assert fits
    assert [share.name for share in shares] == [f"h{index}" for index in range(len(numbers))]
    assert sum(share.num_ranks for share in shares) == (fixed + num_open if num_ranks is None else num_ranks)
    given_out = [share.num_ranks for share, number in zip(shares, numbers, strict=True) if number is None]
    assert not given_out or 1 <= min(given_out) <= max(given_out) <= min(given_out) + 1
    assert all(share.num_ranks == number for share, number in zip(shares, numbers, strict=True) if number)
