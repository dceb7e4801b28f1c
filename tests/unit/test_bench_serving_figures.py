"""How the benchmark of serving reduces what it saw of requests."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.serving.figures import least_throughput, longest_gap_s, oracle_latencies, quantile
from benchmarks.serving.soak import EVENTS, plan


def test_a_quantile_is_a_value_that_was_seen() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile([7.0], 0.99) == 7.0
    assert math.isnan(quantile([], 0.5))


def test_the_longest_gap_counts_from_the_beginning_and_to_the_end() -> None:
    assert longest_gap_s([], 1.0, 4.0) == 3.0
    assert longest_gap_s([0.5, 2.0, 2.5, 9.0], 1.0, 4.0) == 1.5
    assert longest_gap_s([1.1, 1.2], 1.0, 4.0) == pytest.approx(2.8)


def test_the_least_throughput_is_that_of_the_emptiest_whole_window() -> None:
    moments = [0.1, 0.2, 0.3, 0.6, 1.1, 1.2]
    assert least_throughput(moments, 0.0, 1.5, 0.5) == 2.0
    assert least_throughput(moments, 0.0, 1.4, 0.5) == 2.0  # the last window is not whole
    assert least_throughput([], 0.0, 1.0, 0.5) == 0.0
    assert math.isnan(least_throughput(moments, 0.0, 0.4, 0.5))


def test_the_oracle_takes_the_slow_replica_only_where_that_is_faster() -> None:
    assert oracle_latencies([0.0, 0.0, 0.0], [1.0, 1.0, 4.0]) == [1.0, 1.0, 2.0]
    assert oracle_latencies([0.0] * 6, [1.0, 4.0]) == [1.0, 2.0, 3.0, 4.0, 4.0, 5.0]


def test_no_request_is_faster_than_the_oracles_best_replica() -> None:
    chance = random.Random(0)
    arrivals = sorted(chance.uniform(0, 10) for _ in range(500))
    assert min(oracle_latencies(arrivals, [0.02, 0.02, 0.08])) >= 0.02 - 1e-9


@pytest.mark.parametrize("number", [1, 6, 50])
def test_a_plan_has_every_kind_of_fault_equally_often_and_only_the_seed_decides(number: int) -> None:
    events = plan(3, number)
    assert len(events) == number
    assert events == plan(3, number)
    counts = [events.count(kind) for kind in EVENTS]
    assert max(counts) - min(counts) <= 1
