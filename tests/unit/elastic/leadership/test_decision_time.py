"""A thousand agents of one job: how long the coordinator of all of them decides in one turn of its loop."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.elastic.simulated_cluster import SimulatedCluster
from multiworld.elastic.job.options import RestartPolicy

DECISION_S = 0.02  # of processor time
ROUNDS = 3
SLACK = 2.0  # for a machine that is busy

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def plain() -> SimulatedCluster:
    """A thousand hosts of a program whose workers are all started again together."""
    cluster = SimulatedCluster(1000, policy=RestartPolicy.ALL)
    cluster.start()
    cluster.check()
    return cluster


def longest_s(cluster: SimulatedCluster) -> float:
    """Return how long the longest decisions took that were counted, but for two: others may have had the processor."""
    return sorted(turn.cpu_s for turn in cluster.turns)[-3]


def test_a_thousand_hosts_start_in_short_decisions(plain: SimulatedCluster) -> None:
    assert longest_s(plain) <= SLACK * DECISION_S
    assert plain.num_messages["RosterChanged"] < 200_000  # those that come together know one revision of the roster


def test_all_workers_are_stopped_and_started_in_short_decisions(plain: SimulatedCluster) -> None:
    longest: list[float] = []
    for _ in range(ROUNDS):
        turns = plain.lose_and_replace()
        longest.append(max(turn.cpu_s for turn in turns))
    plain.check()
    assert median(longest) <= SLACK * DECISION_S


def test_a_successor_takes_over_in_short_decisions(plain: SimulatedCluster) -> None:
    plain.forget()
    plain.take_over()
    plain.check()
    assert longest_s(plain) <= SLACK * DECISION_S
