"""Which members are slow, and in what."""

from __future__ import annotations

import pytest

from multiworld.training.health.slow_ranks import CPU_WAIT_WINDOWS, Recovered, Slow, SlowRankPolicy, SlowRanks
from multiworld.training.health.step_times import Own

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
    assert heard(ranks, owns, SlowRankPolicy().least - 1) == []
    assert [each.member for each in heard(ranks, owns, 1)] == ["d"]


def test_a_member_without_micro_batches_is_left_out() -> None:
    owns = {**step("b", backward=3.0), "new": Own({"wait": 1.0}, 0)}
    assert [each.member for each in heard(SlowRanks(), owns, 20)] == ["b"]


def waiting(member: str, wait_s: float) -> dict[str, Own]:
    """All wait for a processor as long as they work; that member ``wait_s``, for each micro-batch."""
    return {
        each: own._replace(seconds={**own.seconds, "cpu wait": 2 * (wait_s if each == member else 0.05)})
        for each, own in step().items()
    }


def test_waiting_for_a_processor_makes_nobody_slow_for_a_while() -> None:
    ranks = SlowRanks()
    for _ in range(9):  # a hundred steps with a core for itself, then a hundred with a core that others have as well
        assert heard(ranks, waiting("b", 0.0), 100) == []
        assert heard(ranks, waiting("b", 1.0), 100) == []


def test_a_member_whose_host_has_no_processor_for_it_is_named_in_the_end() -> None:
    ranks, least = SlowRanks(), SlowRankPolicy().least * CPU_WAIT_WINDOWS
    assert heard(ranks, waiting("b", 0.35), least - 1) == []
    (slow,) = heard(ranks, waiting("b", 0.35), 1)
    assert isinstance(slow, Slow)
    assert (slow.member, slow.part) == ("b", "cpu wait")
    assert slow.factor == pytest.approx(4.0)
    assert slow.part_factor == pytest.approx(7.0)
    (recovered,) = heard(ranks, waiting("b", 0.05), 200)
    assert isinstance(recovered, Recovered)


def test_a_long_stall_in_another_part_does_not_hide_which_part_is_slow() -> None:
    ranks = SlowRanks()
    found = heard(ranks, step("b", backward=3.0, forward=1000.0), 4) + heard(ranks, step("b", backward=3.0), 16)
    assert [(each.member, each.part) for each in found if isinstance(each, Slow)] == [("b", "backward")]


def test_a_member_that_is_slow_in_everything_is_named_with_what_costs_most() -> None:
    (slow,) = heard(SlowRanks(), step("b", data=1.8, forward=1.8, backward=1.8, optimizer=1.8), 20)
    assert isinstance(slow, Slow)
    assert (slow.member, slow.part) == ("b", "backward")
    assert slow.factor == pytest.approx(1.8)


def test_a_member_that_becomes_slow_in_another_part_is_reported_again() -> None:
    ranks = SlowRanks()
    found = heard(ranks, step("b", backward=3.0), 20) + heard(ranks, step("b", data=11.0), 18)
    assert [each.part for each in found if isinstance(each, Slow)] == ["backward", "data"]


def test_slow_steps_short_of_a_majority_make_nobody_slow() -> None:
    ranks, least = SlowRanks(), SlowRankPolicy().least
    for _ in range(9):
        assert heard(ranks, step("c", backward=5.0), least - 1) == []
        assert heard(ranks, step(), SlowRankPolicy().window - least + 1) == []


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="recovered=2"):
        SlowRankPolicy(recovered=2.0)
    with pytest.raises(ValueError, match="least <= window"):
        SlowRankPolicy(least=30, window=20)
    with pytest.raises(ValueError, match="negative"):
        SlowRankPolicy(share=-1.0)
