"""Who is chosen; and in virtual time, how well a slow, a busy and a stalled replica are dealt with."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from multiworld.serving.flow.in_flight import InFlight
from multiworld.serving.flow.routing import POLICIES, make_policy, rendezvous

CHECK_S = 0.05
WINDOW = 16


@dataclass
class Candidate:
    name: str
    latency_s: float = 0.01
    in_flight: int = 0


def test_shortest_queue_takes_who_will_be_done_first() -> None:
    policy = make_policy("shortest-queue", lambda n: 0)
    slow, busy, good = Candidate("a", 0.04, 0), Candidate("b", 0.01, 4), Candidate("c", 0.01, 2)
    assert policy.choose([slow, busy, good], b"") is good


def test_round_robin_takes_turns_also_when_one_comes_or_goes() -> None:
    policy = make_policy("round-robin", lambda n: 0)
    three = [Candidate("a"), Candidate("b"), Candidate("c")]
    assert [policy.choose(three, b"").name for _ in range(4)] == ["a", "b", "c", "a"]
    assert [policy.choose(three[1:], b"").name for _ in range(3)] == ["b", "c", "b"]


def test_sticky_keeps_a_key_where_it_is_unless_its_replica_goes() -> None:
    policy = make_policy("sticky", lambda n: 0)
    replicas = [Candidate(f"r-{number}") for number in range(5)]
    keys = [f"user {number}".encode() for number in range(100)]
    before = {key: policy.choose(replicas, key).name for key in keys}
    after = {key: policy.choose(replicas[1:], key).name for key in keys}
    assert len(set(before.values())) == 5
    assert all(before[key] == after[key] for key in keys if before[key] != "r-0")
    assert policy.choose([Candidate("a", 1.0), Candidate("b", 0.1)], b"").name == "b"


def test_rendezvous_spreads_keys_about_evenly() -> None:
    replicas = [Candidate(f"blocks-{number}") for number in (1, 2, 3)]
    random_ = random.Random(1)
    chosen = Counter(rendezvous(replicas, random_.randbytes(16)).name for _ in range(3000))
    assert min(chosen.values()) > 850, chosen


def test_rendezvous_spreads_ids_that_are_counted_up_about_evenly() -> None:
    for salt in (b"12345678", b"\\0" * 8, b"abcdefgh"):
        for names in (("a-1", "a-2"), ("a-1", "a-2", "a-3"), ("a-7", "a-10")):
            replicas = [Candidate(name) for name in names]
            ids = [salt + number.to_bytes(8, "little") for number in range(2000)]
            chosen = Counter(rendezvous(replicas, id_).name for id_ in ids)
            assert min(chosen[name] for name in names) > 0.8 * 2000 / len(names), (salt, chosen)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown routing policy 'best'"):
        make_policy("best", lambda n: 0)
    assert len({type(make_policy(name, lambda n: 0)) for name in POLICIES}) == len(POLICIES)


# ---- in virtual time


@dataclass
class Server:
    """One replica: executes what it has, one after the other, from ``stopped[0]`` to ``stopped[1]`` nothing."""

    factor: float
    stopped: tuple[float, float] | None = None
    queue: deque[bytes] = field(default_factory=deque)
    busy: bool = False
    free_at: float = 0.0


class Simulation:
    """Requests through an InFlight to servers. ``service``: seconds that a request takes at a server of factor 1."""

    def __init__(self, servers: dict[str, Server], arrivals: list[tuple[float, float]]) -> None:
        self.servers, self.arrivals = servers, arrivals
        self.in_flight = InFlight(make_policy("shortest-queue", lambda n: 0))
        self.latencies: list[float] = []
        self.executions = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.now = 0.0
        self._left = len(arrivals)
        self._came = {number.to_bytes(16, "little"): at for number, (at, _) in enumerate(arrivals)}
        self._takes = {number.to_bytes(16, "little"): takes for number, (_, takes) in enumerate(arrivals)}

    def run(self) -> None:
        for name in self.servers:
            self.in_flight.open(name, WINDOW, now=0.0)
        for key, at in self._came.items():
            self._at(at, lambda key=key: self._arrive(key))  # type: ignore[misc]
        self._at(CHECK_S, self._check)
        while self._left:
            self.now, _, call = heapq.heappop(self._events)
            call()
            for key, peer in self.in_flight.assign(now=self.now):
                self.servers[peer].queue.append(key)
                self._work(peer)

    def _at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), call))

    def _arrive(self, key: bytes) -> None:
        self.in_flight.put(key, 1, now=self.now)

    def _check(self) -> None:
        self.in_flight.check(now=self.now)
        self._at(self.now + CHECK_S, self._check)

    def _work(self, name: str) -> None:
        server = self.servers[name]
        if server.busy or not server.queue:
            return
        key = server.queue.popleft()
        server.busy = True
        self.executions += 1
        end = self.now + self._takes[key] * server.factor
        if server.stopped is not None and server.stopped[0] <= end and self.now < server.stopped[1]:
            end += server.stopped[1] - max(self.now, server.stopped[0])
        self._at(end, lambda: self._done(name, key))

    def _done(self, name: str, key: bytes) -> None:
        self.servers[name].busy = False
        if key in self.in_flight.released(name, [key], now=self.now):
            self.latencies.append(self.now - self._came[key])
            self._left -= 1
        self._work(name)


def poisson(rate: float, number: int, service: Callable[[], float], seed: int) -> list[tuple[float, float]]:
    random_ = random.Random(seed)
    at = 0.0
    arrivals = []
    for _ in range(number):
        at += random_.expovariate(rate)
        arrivals.append((at, service()))
    return arrivals


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(0.99 * (len(latencies) - 1))]


def oracle(servers: dict[str, Server], arrivals: list[tuple[float, float]]) -> list[float]:
    """Knows at each moment what each server has and how fast it is, though not how long a request will take."""
    latencies = []
    ends: dict[str, list[float]] = {name: [] for name in servers}
    for at, takes in arrivals:
        for name in servers:
            ends[name] = [end for end in ends[name] if end > at]
        best = min(servers, key=lambda name: (len(ends[name]) + 1) * servers[name].factor)
        ends[best].append(max([at, *ends[best]]) + takes * servers[best].factor)
        latencies.append(ends[best][-1] - at)
    return latencies


def one_slow() -> dict[str, Server]:
    return {"r-1": Server(1.0), "r-2": Server(1.0), "r-3": Server(4.0)}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_one_of_three_four_times_slower_p99_stays_near_an_oracles(seed: int) -> None:
    service_s = 0.01
    exponential = random.Random(seed + 100)
    arrivals = poisson(0.7 * 2.25 / service_s, 6000, lambda: exponential.expovariate(1 / service_s), seed)
    simulation = Simulation(one_slow(), arrivals)
    simulation.run()
    ours, best = p99(simulation.latencies), p99(oracle(one_slow(), arrivals))
    assert ours <= 1.5 * best, f"seed {seed}: {ours / service_s:.1f} service times, oracle {best / service_s:.1f}"


def test_a_burst_drains_in_about_the_ideal_time() -> None:
    service_s = 0.005
    for number in (1, 2, 3):
        servers = {f"r-{index}": Server(1.0) for index in range(number)}
        simulation = Simulation(servers, [(0.0, service_s)] * 200)
        simulation.run()
        assert max(simulation.latencies) <= 1.1 * 200 * service_s / number


def test_a_stalled_replica_is_suspected_and_its_work_tried_elsewhere_within_the_budget() -> None:
    servers = {"r-1": Server(1.0, stopped=(5.0, 8.0)), "r-2": Server(1.0)}
    arrivals = poisson(100.0, 1500, lambda: 0.005, 7)
    simulation = Simulation(servers, arrivals)
    simulation.run()
    assert len(simulation.latencies) == len(arrivals)
    assert max(simulation.latencies) <= 0.25 + 0.1 + 0.005 * (WINDOW + 2)
    assert simulation.executions - len(arrivals) <= 0.2 * len(arrivals) + 16
    late = [peer for _, peer in simulation.in_flight.assign(now=simulation.now)]
    assert late == []
    assert simulation.in_flight.suspects() == ()
