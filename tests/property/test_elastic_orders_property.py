"""Orders that wait and are told a few at a time: no worker runs beside the one before it, and no rank runs twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.elastic.simulated_cluster import SimulatedCluster
from multiworld.elastic.job import job, placement
from multiworld.elastic.job.options import RestartPolicy
from multiworld.elastic.leadership import coordinator, election, outbox

EVENTS = ("come", "lose", "fail", "scale", "turns")
MIN_HOSTS, NUM_HOSTS, MAX_HOSTS = 2, 5, 7


@pytest.fixture(scope="module", autouse=True)
def large_jobs() -> Iterator[None]:
    """Let five hosts be treated as a thousand are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "LARGE_JOB", 1)
        patch.setattr(placement, "MAX_PLACES", 2)
        patch.setattr(placement, "MAX_HOSTS", 2)
        patch.setattr(election, "SMALL_JOB", 2)
        patch.setattr(coordinator, "SMALL_JOB", 2)
        patch.setattr(outbox, "SLICE_S", 10e-6)
        yield


def check_ranks(cluster: SimulatedCluster) -> None:
    assert [agent.twice for agent in cluster.agents.values()] == [[]] * len(cluster.agents)
    held = [(place.generation, place.rank) for place in cluster.places]
    assert len(set(held)) == len(held), held


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    policy=st.sampled_from([RestartPolicy.WORKER, RestartPolicy.ALL]),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=40),
)
def test_no_worker_is_told_of_another_round_before_its_own_has_ended(
    policy: RestartPolicy, events: list[tuple[str, int]]
) -> None:
    cluster = SimulatedCluster(NUM_HOSTS, policy=policy, min_hosts=MIN_HOSTS)
    cluster.start()
    names = iter(f"newcomer-{number}" for number in range(1000))
    for kind, number in events:
        others = [name for name in cluster.agents if name != cluster.leader]
        if kind == "come" and len(others) < MAX_HOSTS:
            cluster.come(next(names))
        elif kind == "lose" and len(others) > MIN_HOSTS:
            cluster.lose(others[number % len(others)])
        elif kind == "fail":
            agent = cluster.agents[others[number % len(others)]]
            if agent.running:
                agent.exit(agent.running[number % len(agent.running)], -9)
        elif kind == "scale":
            cluster.wants(MIN_HOSTS + number % (NUM_HOSTS - MIN_HOSTS + 1))
        for turn in range(3 * number if kind == "turns" else number % 3):
            cluster.turn(agents_first=bool((turn + number) % 2))
            check_ranks(cluster)
    cluster.settle()
    check_ranks(cluster)
    while cluster.coordinator.job.vacant or len(cluster.agents) < MIN_HOSTS + 1:
        cluster.come(next(names))
        cluster.settle()
    cluster.check()
