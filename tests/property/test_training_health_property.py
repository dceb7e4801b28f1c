"""Slow ranks, divergence and bad steps under arbitrary noise: who must be named in time, and who must not."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.training.noisy_machine import NoisyMachine, RecordedMachine
from multiworld.training.engine.facts import Facts
from multiworld.training.health.bad_steps import BadSteps, LossSpike
from multiworld.training.health.digest import schedule
from multiworld.training.health.slow_ranks import Recovered, Slow, SlowRanks
from multiworld.training.health.step_times import Own, StepTimes
from multiworld.training.health.verdict import judge

unhurried = settings(deadline=None)
WITHIN, WARM_UP = 20, 30


def named(machine: NoisyMachine, slow: int, **factors: float) -> list[Slow | Recovered]:
    ranks = SlowRanks()
    for _ in range(WARM_UP):
        ranks.heard(machine.step())
    return [each for _ in range(WITHIN) for each in ranks.heard(machine.step(slow, **factors))]


@unhurried
@given(
    st.integers(2, 8), st.integers(0, 2**32), st.sampled_from([{"data": 11.0}, {"forward": 13 / 3}, {"backward": 3.0}])
)
def test_a_rank_that_is_twice_as_slow_is_named_with_its_part_within_20_steps(
    num: int, seed: int, factors: dict[str, float]
) -> None:
    found = named(NoisyMachine(num, seed, sigma=0.1), num - 1, **factors)
    (part,) = factors
    assert [(each.member, each.part) for each in found if isinstance(each, Slow)] == [(str(num - 1), part)]


@pytest.mark.parametrize("num", [2, 4, 8])
@pytest.mark.parametrize("part", ["data", "backward"])
def test_on_a_noisy_machine_nearly_every_slow_rank_is_named_in_time(num: int, part: str) -> None:
    factors = {"data": 11.0} if part == "data" else {"backward": 3.0}
    hits = 0
    for seed in range(30):
        found = named(NoisyMachine(num, seed, sigma=0.25), num - 1, **factors)
        hits += any(isinstance(each, Slow) and each.member == str(num - 1) and each.part == part for each in found)
    assert hits == 30


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_there_is_less_than_one_false_alarm_in_1000_steps_on_a_noisy_machine(num: int) -> None:
    num_steps = 3000
    machine, ranks = NoisyMachine(num, num, sigma=0.25, bursts=0.01), SlowRanks()
    alarms = sum(isinstance(each, Slow) for _ in range(num_steps) for each in ranks.heard(machine.step()))
    assert alarms < num_steps / 1000


@pytest.mark.parametrize("part", ["data", "backward"])
@pytest.mark.parametrize("rank", [0, 3, 7])
def test_each_recorded_rank_that_needs_twice_as_long_is_named_in_time_and_no_other(part: str, rank: int) -> None:
    for start in range(rank, RecordedMachine.num_steps, 20):
        machine, ranks = RecordedMachine(start), SlowRanks()
        for _ in range(WARM_UP):
            assert ranks.heard(machine.step()) == []
        found = [each for _ in range(WITHIN) for each in ranks.heard(machine.step(rank, part))]
        assert [(each.member, each.part) for each in found if isinstance(each, Slow)] == [(str(rank), part)]


def test_nobody_is_named_in_the_recorded_steps() -> None:
    machine, ranks = RecordedMachine(), SlowRanks()
    assert [each for _ in range(RecordedMachine.num_steps) for each in ranks.heard(machine.step())] == []


@unhurried
@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=9), st.floats(1.01, 3), st.floats(0, 0.5))
def test_who_is_above_the_others_is_as_one_by_one(seconds: list[float], factor: float, share: float) -> None:
    owns = {str(rank): Own({"forward": took, "backward": 1.0}, 1) for rank, took in enumerate(seconds)}
    expected = []
    for rank, took in enumerate(seconds):
        usual = median(seconds[:rank] + seconds[rank + 1 :])
        if took > usual * factor and (took - usual) / (usual + 1.0) >= share:
            expected.append(str(rank))
    assert [member for member, _ in StepTimes(owns).above("forward", factor, share)] == expected


@unhurried
@given(st.integers(3, 9), st.data())
def test_a_minority_of_wrong_members_is_named_exactly(num: int, data: st.DataObject) -> None:
    wrong = data.draw(st.sets(st.integers(0, num - 1), max_size=(num - 1) // 2))
    facts = [
        Facts(step=1, digests={"a": "0", "w": f"wrong {data.draw(st.integers(0, 2))}" if place in wrong else "right"})
        for place in range(num)
    ]
    verdict = judge(facts)
    assert verdict.wrong == wrong
    assert (verdict.divergence is None) == (not wrong)


@unhurried
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from("012")), min_size=1, max_size=6))
def test_whatever_members_say_more_than_half_of_them_stay(said: list[dict[str, str]]) -> None:
    verdict = judge([Facts(step=1, digests=each) for each in said])
    assert 2 * len(verdict.wrong) < len(said)


@unhurried
@given(st.dictionaries(st.text(max_size=5), st.integers(0, 50_000_000), max_size=30), st.integers(1, 60))
def test_every_byte_is_compared_once_in_a_round(sizes: dict[str, int], every: int) -> None:
    shares = schedule(sizes, every)
    assert len(shares) == every
    for name, size in sizes.items():
        ranges = sorted((each.start, each.stop) for share in shares for each in share if each.name == name)
        assert sum(stop - start for start, stop in ranges) == size
        assert all(before[1] == after[0] for before, after in pairwise(ranges))


@unhurried
@given(st.floats(0.1, 1e6), st.floats(0.001, 0.05), st.integers(0, 2**32), st.floats(1.0, 3.0), st.integers(17, 200))
def test_a_falling_noisy_loss_is_no_spike_and_a_jump_is_one(
    start: float, noise: float, seed: int, rate: float, num: int
) -> None:
    rng, steps = random.Random(seed), BadSteps(LossSpike())
    for step in range(num):
        loss = start * (1 + step) ** (-rate / 10) * (1 + rng.uniform(-noise, noise))
        assert steps.heard({"loss": loss}, ()) is None
    assert steps.heard({"loss": start * 10}, ()) is not None
