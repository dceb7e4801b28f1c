"""Slow ranks, divergence and bad steps under arbitrary noise: who must be named in time, and who must not."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.training.engine.facts import Facts
from multiworld.training.health.bad_steps import BadSteps, LossSpike
from multiworld.training.health.digest import schedule
from multiworld.training.health.slow_ranks import Own, Recovered, Slow, SlowRanks
from multiworld.training.health.verdict import judge

unhurried = settings(deadline=None)
SHARES_S = {"data": 0.005, "forward": 0.015, "backward": 0.025, "optimizer": 0.005}
WITHIN, WARM_UP = 20, 30


class NoisyMachine:
    """Steps of ``num`` members. Each part varies log-normally by ``sigma``, all together by 0.4, and one part in
    twenty stalls for a time without a mean (Pareto). In ``bursts`` other work halves a core for up to five steps.
    """

    def __init__(self, num: int, seed: int, *, sigma: float, bursts: float = 0.0) -> None:
        self._num, self._random, self._sigma, self._bursts = num, random.Random(seed), sigma, bursts
        self._shared: dict[int, int] = {}

    def step(self, slow: int = -1, **factors: float) -> dict[str, Own]:
        together = math.exp(self._random.gauss(0, 0.4))
        return {str(rank): self._own(rank, together, factors if rank == slow else {}) for rank in range(self._num)}

    def _own(self, rank: int, together: float, factors: dict[str, float]) -> Own:
        num_micro_batches = self._random.choice((2, 3))
        if self._random.random() < self._bursts:
            self._shared.setdefault(rank, self._random.randint(1, 5))
        left = self._shared.pop(rank, 0)
        if left > 1:
            self._shared[rank] = left - 1
        seconds = {}
        for part, usual in SHARES_S.items():
            took = usual * together * math.exp(self._random.gauss(0, self._sigma)) * factors.get(part, 1.0)
            if self._random.random() < 0.05:
                took *= 1 + self._random.paretovariate(1.2)
            seconds[part] = took * (2.0 if left else 1.0) * (1 if part == "optimizer" else num_micro_batches)
        return Own(seconds, num_micro_batches)


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
    assert hits >= 28


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_there_is_less_than_one_false_alarm_in_1000_steps_on_a_noisy_machine(num: int) -> None:
    num_steps = 3000
    machine, ranks = NoisyMachine(num, num, sigma=0.25, bursts=0.01), SlowRanks()
    alarms = sum(isinstance(each, Slow) for _ in range(num_steps) for each in ranks.heard(machine.step()))
    assert alarms < num_steps / 1000


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
