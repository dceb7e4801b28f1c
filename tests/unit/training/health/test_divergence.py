"""Which members have diverged, and which must give up their state."""

from __future__ import annotations

from multiworld.training.engine.facts import Facts
from multiworld.training.health.divergence import Divergence, diverged
from multiworld.training.health.verdict import FINE, judge


def said(*values: str, **more: str) -> Facts:
    return Facts(step=7, digests={**{f"p{place}": value for place, value in enumerate(values)}, **more})


def test_equal_members_have_not_diverged() -> None:
    assert diverged("abc", [said("1", "2")] * 3) is None
    assert judge([said("1", "2")] * 3) == FINE


def test_the_odd_one_of_three_is_named_with_the_first_parameter() -> None:
    assert diverged("abc", [said("1", "2", "3"), said("1", "x", "y"), said("1", "2", "3")]) == Divergence(
        "p1", ("b",), ("a", "b", "c"), 2
    )
    assert judge([said("1"), said("x"), said("1")]).wrong == {1}


def test_of_two_members_nobody_knows_who_is_right() -> None:
    found = diverged("ab", [said("1"), said("2")])
    assert found == Divergence("p0", (), ("a", "b"), 1)
    assert judge([said("1"), said("2")]).wrong == set()


def test_a_tie_names_nobody() -> None:
    found = diverged("abcd", [said("1"), said("1"), said("2"), said("2")])
    assert found is not None
    assert found.wrong == ()


def test_two_wrong_members_of_five_are_both_named() -> None:
    assert judge([said("1"), said("2"), said("1"), said("3"), said("1")]).wrong == {1, 3}


def test_members_that_are_wrong_in_different_places_are_both_named() -> None:
    facts = [said("1", "1"), said("2", "1"), said("1", "2"), said("1", "1"), said("1", "1")]
    assert judge(facts).wrong == {1, 2}


def test_as_many_wrong_members_as_right_ones_are_not_taken_out() -> None:
    facts = [said("1", "1"), said("2", "1"), said("1", "2")]
    assert judge(facts).wrong == set()  # one of three would be left
    assert judge(facts).divergence is not None


def test_a_newcomer_without_state_is_not_compared() -> None:
    new = Facts(step=7, is_ready=False)
    assert judge([said("1"), new, said("1"), said("1")]) == FINE
    assert judge([said("1"), new, said("2"), said("1")]).wrong == {2}


def test_a_member_that_computes_something_else_the_second_time_is_wrong() -> None:
    facts = [said("1"), Facts(step=7, digests={"p0": "1"}, miscomputed="w"), said("1")]
    verdict = judge(facts)
    assert (verdict.wrong, verdict.miscomputed) == (frozenset({1}), ((1, "w"),))


def test_a_program_that_is_not_deterministic_breaks_no_member() -> None:
    verdict = judge([Facts(step=7, miscomputed="w")] * 3)
    assert (verdict.wrong, len(verdict.miscomputed)) == (frozenset(), 3)
