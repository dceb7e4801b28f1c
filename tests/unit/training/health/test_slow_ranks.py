"""Which members are slow, and in what."""

from __future__ import annotations

import pytest

from multiworld.training.health.slow_ranks import Own, Recovered, Slow, SlowRankPolicy, SlowRanks

USUAL = {"data": 0.005, "forward": 0.015, "backward": 0.025, "optimizer": 0.005}


def step(slow: str = "", **factors: float) -> dict[str, Own]:
    """Of three members with two micro-batches each; ``slow`` needs ``factors`` times as long."""
    return {
        member: Own(
            {
                part: seconds * (1 if part == "optimizer" else 2) * (factors.get(part, 1) if member == slow else 1)
                for part, seconds in USUAL.items()
            },
            2,
        )
        for member in ("a", "b", "c")
    }


def heard(ranks: SlowRanks, owns: dict[str, Own], times: int) -> list[Slow | Recovered]:
    return [each for _ in range(times) for each in ranks.heard(owns)]


def test_a_member_that_is_twice_as_slow_in_backward_is_named_once() -> None:
    (slow,) = heard(SlowRanks(), step("b", backward=2.0), 60)
    assert isinstance(slow, Slow)
    assert (slow.member, slow.part) == ("b", "backward")
    assert slow.part_factor == pytest.approx(2.0)
    assert slow.factor == pytest.approx(1.5)


def test_a_slow_loader_is_named_as_data() -> None:
    (slow,) = heard(SlowRanks(), step("c", data=11.0), 20)
    assert isinstance(slow, Slow)
    assert (slow.member, slow.part, round(slow.factor, 3)) == ("c", "data", 2.0)


def test_a_part_that_takes_hardly_any_time_makes_nobody_slow() -> None:
    assert heard(SlowRanks(), step("a", optimizer=2.0), 60) == []


def test_more_micro_batches_make_nobody_slow() -> None:
    owns = step()
    owns["b"] = Own({part: seconds * (1 if part == "optimizer" else 6) for part, seconds in USUAL.items()}, 6)
    assert heard(SlowRanks(), owns, 60) == []


def test_waiting_for_others_makes_nobody_slow() -> None:
    owns = step()
    owns["b"] = Own({**owns["b"].seconds, "wait": 9.0}, 2)
    assert heard(SlowRanks(), owns, 60) == []


def test_two_members_are_compared_with_each_other() -> None:
    owns = {member: own for member, own in step("b", forward=3.0, backward=3.0).items() if member != "c"}
    (slow,) = heard(SlowRanks(), owns, 20)
    assert isinstance(slow, Slow)
    assert (slow.member, slow.part) == ("b", "backward")


def test_one_member_alone_is_never_slow() -> None:
    assert heard(SlowRanks(), {"a": step()["a"]}, 60) == []


def test_a_member_that_recovered_may_be_reported_again() -> None:
    ranks = SlowRanks()
    slow, usual = step("a", backward=3.0), step()
    kinds = [type(each) for each in heard(ranks, slow, 30) + heard(ranks, usual, 30) + heard(ranks, slow, 30)]
    assert kinds == [Slow, Recovered, Slow]


def test_a_replacement_is_not_judged_by_the_steps_of_the_one_before() -> None:
    ranks = SlowRanks()
    assert len(heard(ranks, step("c", backward=3.0), 20)) == 1
    owns = step("c", backward=3.0)
    owns["d"] = owns.pop("c")
    assert heard(ranks, owns, 16) == []
    assert [each.member for each in heard(ranks, owns, 4)] == ["d"]


def test_a_member_without_micro_batches_is_left_out() -> None:
    owns = {**step("b", backward=3.0), "new": Own({"wait": 1.0}, 0)}
    assert [each.member for each in heard(SlowRanks(), owns, 20)] == ["b"]


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="recovered=2"):
        SlowRankPolicy(recovered=2.0)
    with pytest.raises(ValueError, match="least <= window"):
        SlowRankPolicy(least=30, window=20)
    with pytest.raises(ValueError, match="negative"):
        SlowRankPolicy(share=-1.0)
