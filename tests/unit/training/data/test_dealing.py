"""How the micro-batches of a step are shared out."""

from __future__ import annotations

import pytest

from multiworld.training.data.dealing import deal


@pytest.mark.parametrize(
    ("num", "members", "shares"),
    [
        (16, "abcd", {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7), "c": (8, 9, 10, 11), "d": (12, 13, 14, 15)}),
        (7, "abc", {"a": (0, 1, 2), "b": (3, 4), "c": (5, 6)}),
        (2, "abc", {"a": (0,), "b": (1,), "c": ()}),
    ],
)
def test_contiguous_ranges_differ_by_one_at_most(num: int, members: str, shares: dict[str, tuple[int, ...]]) -> None:
    assert deal(num, members) == shares


def test_after_a_loss_only_what_nobody_has_done_is_dealt() -> None:
    done = {"a": [0, 1, 2, 3], "c": [8, 9, 10, 11], "d": [12, 13, 14, 15]}
    assert deal(16, "acd", done) == {"a": (4, 5), "c": (6,), "d": (7,)}


def test_who_has_done_less_gets_more() -> None:
    done = {"a": [0, 1, 2, 3], "c": [8]}
    assert deal(12, "ac", done) == {"a": (4, 5), "c": (6, 7, 9, 10, 11)}


def test_who_has_done_most_may_get_nothing() -> None:
    assert deal(8, "ab", {"a": [0, 1, 2, 3, 4, 5]}) == {"a": (), "b": (6, 7)}


def test_what_others_have_done_counts_too() -> None:
    assert deal(4, "ab", {"gone": [1, 2]}) == {"a": (0,), "b": (3,)}


def test_a_newcomer_without_a_share_leaves_the_shares_of_the_others() -> None:
    assert deal(4, ["a", "b"]) == {"a": (0, 1), "b": (2, 3)}


@pytest.mark.parametrize(
    ("members", "done", "what"),
    [
        ("", {}, "4 micro-batches cannot be dealt to no member"),
        ("aa", {}, "a member comes twice"),
        ("ab", {"a": [0], "b": [0]}, "micro-batch 0 was done twice: by 'a' and by 'b'"),
        ("ab", {"a": [4]}, "'a' did micro-batch 4 of a step that has 4"),
    ],
)
def test_what_cannot_be_is_refused(members: str, done: dict[str, list[int]], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        deal(4, members, done)
