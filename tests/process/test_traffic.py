"""Much traffic: concurrent operations keep their order, and worlds that come and go leave nothing behind."""

from __future__ import annotations

import pytest

from benchmarks.faults import traffic
from multiworld.testing import Report, WorkerGroup

pytestmark = pytest.mark.usefixtures("no_leaks")

MAX_GROWTH_BYTES = 10_000_000
MAX_ENDING = 10  # that still say goodbye


@pytest.mark.parametrize(("backend", "count"), [("tcp", 2000), ("gloo", 1000)])
def test_concurrent_operations_match_in_the_order_they_were_issued(backend: str, count: int) -> None:
    with WorkerGroup() as workers:
        for worker in traffic.start_pair(workers, traffic.order, backend=backend, count=count, concurrency=64):
            assert worker.await_event("returned", 50)["value"] == {"received": 0, "reduced": 0}
            assert worker.wait() == 0


@pytest.mark.parametrize("backend", ["tcp", "shm"])
def test_collectives_that_one_rank_gives_up_leave_the_others_right(backend: str) -> None:
    with WorkerGroup() as workers:
        pair = traffic.start_pair(workers, traffic.give_up, backend=backend, count=200, seed=7)
        ends = [worker.await_event("returned", 100)["value"] for worker in pair]
        assert [sum(each.values()) for each in ends] == [200, 200]
        assert all(sum(each[end] for each in ends) > 0 for end in ("right", "given up", "refused")), f"{ends}"
        assert [worker.wait() for worker in pair] == [0, 0]


def assert_nothing_grew(measured: Report) -> None:
    before, after = measured["before"], measured["after"]
    assert after["threads"] <= before["threads"]
    assert len(after["descriptors"]) <= len(before["descriptors"])
    assert after["children"] == before["children"]
    growth = after["resident_bytes"] - before["resident_bytes"]
    assert growth < MAX_GROWTH_BYTES, f"{growth / 1e6:.1f} MB"
    assert measured["worlds"] <= MAX_ENDING, "worlds that ended wait for the garbage collector"


@pytest.mark.parametrize(("backend", "count"), [("tcp", 100), ("shm", 100), ("gloo", 40)])
def test_joining_leaving_and_breaking_one_name_again_and_again_leaks_nothing(backend: str, count: int) -> None:
    with WorkerGroup() as workers:
        pair = traffic.start_pair(workers, traffic.cycle, backend=backend, count=count, warm_up=20)
        for worker in pair:
            assert_nothing_grew(worker.await_event("measured", 50))
        assert [worker.wait() for worker in pair] == [0, 0]
