"""Which kills of a soak its events do not tell of."""

from __future__ import annotations

from typing import Any

from benchmarks.elastic.told import Strike, untold

JOINED = [{"kind": "agent joined", "agent": name, "pid": pid} for name, pid in (("a", 1), ("b", 2), ("c", 3))]


def worker(pid: int, *, agent: int = 1, at: float = 10.0) -> Strike:
    return Strike(at=at, what="worker", pid=pid, agent=agent)


def host(pid: int, *, at: float = 10.0) -> Strike:
    return Strike(at=at, what="host", pid=pid, agent=pid)


def test_a_worker_is_told_of_by_its_failure() -> None:
    strikes = [worker(100), worker(101)]
    events = [*JOINED, {"kind": "worker failed", "pid": 100}]
    assert untold(strikes, events) == [strikes[1]]


def test_an_agent_is_told_of_when_it_is_lost_or_another_coordinates() -> None:
    strikes = [host(1), host(2), host(3)]
    events: list[dict[str, Any]] = [*JOINED, {"kind": "agent lost", "pid": 1}, {"kind": "takeover", "before": "b"}]
    assert untold(strikes, events) == [strikes[2]]


def test_a_worker_may_fall_with_its_host_but_not_long_before_it() -> None:
    events = [*JOINED, {"kind": "agent lost", "pid": 1}]
    together, long_before, elsewhere = worker(100, at=9.9), worker(101, at=9.0), worker(102, agent=2, at=9.9)
    assert untold([together, long_before, elsewhere, host(1)], events) == [long_before, elsewhere]
