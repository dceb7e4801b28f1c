"""Replicas that are stopped or cut off, agents that are killed, and failures in the middle of a recovery."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median, percentile
from multiworld.testing import Host, Network, hosts_available
from multiworld.world.liveness import DEFAULT_LEASE_S

from ..elastic.job import TrialFailed
from .run import Run
from .sides import OURS, Side

__all__ = [
    "Partition",
    "agents",
    "committed_on_both",
    "cut",
    "cuts",
    "doubles",
    "kill_agent",
    "start_on_hosts",
    "stops",
    "went_on",
]

ENDLESS = ["--steps", "1000000"]
HANG_S = 10.0
PORT = 29400
WITHIN = Bound.at_most(DEFAULT_LEASE_S + 1.0)


def stops(alternations: int) -> list[Line]:
    """SIGSTOP of one of four in a phase; then it is let go on, and must not commit anything but as a newcomer."""
    took: list[float] = []
    late = 0
    with Run(OURS, options=ENDLESS) as run:
        run.start()
        after = 0.0
        for number in range(max(alternations, 5)):
            run.await_steady(after=after)
            strike = run.strike(
                [number % 4], ("forward", "all-reduce", "commit", "backward")[number % 4], signal.SIGSTOP
            )
            took.append(run.recovery_s(strike, HANG_S))
            after = strike.at
            for entry in strike.entries:
                _signal(entry.pid, signal.SIGCONT)
            run.await_steady(after=after, steps=2)
            late += sum(_committed_apart(run, entry.pid, after) for entry in strike.entries)
            print(f"  stopped {number + 1}: {took[-1]:.2f} s", flush=True)
    return [
        _times("stopped, until the survivors' next step", took, WITHIN),
        Line(
            name="steps that a stopped replica committed in its old generation, and the others not as it did",
            unit="",
            value=late,
            bound=Bound.at_most(0),
        ),
    ]


def _committed_apart(run: Run, pid: int, at: float) -> int:
    """Return how many steps a process committed on its own, after a moment, in the generation in which it was by then.

    If it stood still when all had heard that the present step counts, it says so once it goes on: that is the step
    that the others committed, in the same generation and with the same loss.
    """
    commits = [entry for entry in run.journal.entries if entry.event == "commit"]
    own = [entry for entry in commits if entry.pid == pid]
    before = [entry["generation"] for entry in own if entry.at <= at]
    late = [entry for entry in own if entry.at > at and entry["generation"] == before[-1]]
    others = [
        [
            (other["generation"], other["loss"]) == (entry["generation"], entry["loss"])
            for other in commits
            if other["step"] == entry["step"] and other.pid != pid
        ]
        for entry in late
    ]
    return sum(not as_it or not all(as_it) for as_it in others)


@dataclass(frozen=True)
class Partition:
    """``apart``: the hosts of ``num_hosts`` that reach the others no more. Host 0 has the coordinator and the store."""

    name: str
    num_hosts: int
    apart: frozenset[int]

    def cut(self, hosts: Sequence[Host]) -> float:
        """Return the monotonic time just before."""
        if len(self.apart) == 1:
            return hosts[min(self.apart)].cut()
        at = time.monotonic()
        for index in self.apart:
            for other in set(range(self.num_hosts)) - self.apart:
                hosts[index].drop(to=hosts[other], direction="both")
        return at

    def sides(self) -> tuple[frozenset[int], frozenset[int]]:
        return frozenset(range(self.num_hosts)) - self.apart, self.apart


PARTITIONS = (
    Partition("a host of three cut off", 3, frozenset({2})),
    Partition("the coordinator's host cut off", 3, frozenset({0})),
    Partition("four hosts parted in two halves", 4, frozenset({2, 3})),
    Partition("the coordinator's host of four cut off", 4, frozenset({0})),
)


def cuts(alternations: int) -> list[Line]:
    """A replica on each host. The larger side goes on; of two halves, one."""
    reason = hosts_available()
    if reason is not None:
        return [Line.not_measured("cut off", reason)]
    lines = []
    for partition in PARTITIONS:
        name, took, both, failed = partition.name, [], 0, 0
        for number in range(alternations):
            try:
                seconds, commits = cut(partition)
            except TrialFailed as error:
                failed += 1
                print(f"  {name}: {error}", file=sys.stderr)
                continue
            took.append(seconds)
            both += commits
            print(f"  {name} {number + 1}: {seconds:.2f} s, {commits} steps on the other side", flush=True)
        if took:
            lines.append(_times(f"{name}, until the others' next step", took, WITHIN))
        lines += [
            Line(name=f"{name}: steps committed on both sides", unit="", value=both, bound=Bound.at_most(0)),
            Line(name=f"{name}: trials without a next step", unit="", value=failed, bound=Bound.at_most(0)),
        ]
    return lines


def cut(partition: Partition, side: Side = OURS) -> tuple[float, int]:
    """Return how long those that go on stood still, and how many steps the others committed after that."""
    with Network(partition.num_hosts) as network, Run(side, 1, ENDLESS) as run:
        pids = start_on_hosts(run, network.hosts)
        at = partition.cut(network.hosts)
        sides = [[pids[index] for index in sorted(side)] for side in partition.sides()]
        run.wait(lambda: any(went_on(run, side, at, len(pids)) for side in sides), 3 * HANG_S, "one side's next step")
        (winner, loser) = sides if went_on(run, sides[0], at, len(pids)) else sides[::-1]
        if len(winner) < len(loser):
            raise TrialFailed(f"{len(winner)} of {len(pids)} go on, the smaller side")
        seconds = went_on(run, winner, at, len(pids))
        time.sleep(DEFAULT_LEASE_S + 1.0)  # what the others do meanwhile is looked at
        run.journal.read()
        return max(seconds) - at, len(committed_on_both(run, winner, loser, at, len(pids)))


def start_on_hosts(run: Run, hosts: Sequence[Host]) -> list[int]:
    """Start a launcher with one replica on each host, the first one as coordinator. Returns the replica of each."""
    endpoint = f"{hosts[0].address}:{PORT}"
    for number, host in enumerate(hosts):
        run.start_node(host, endpoint=endpoint, num_hosts=len(hosts))
        if number == 0:
            run.wait(lambda: "this agent coordinates" in run.nodes[0].output, 30.0, "a coordinator")
    replicas = set(run.await_steady(len(hosts)).values())
    return [pid for node in run.nodes for pid in replicas.intersection(node.others())]


def went_on(run: Run, side: Sequence[int], at: float, num_before: int) -> list[float]:
    """Return when each process of a side committed a step with fewer replicas than before; nothing if one has not."""
    commits = run.commits(at)
    found = [[each.at for each in commits.get(pid, ()) if each["replicas"] < num_before] for pid in side]
    return [times[0] for times in found] if all(found) else []


def committed_on_both(run: Run, winner: Sequence[int], loser: Sequence[int], at: float, num_before: int) -> set[int]:
    """Return the steps that the other side has committed on its own, or after the winner's next step."""
    steps = {each["step"] for pid in winner for each in run.commits(at).get(pid, ())}
    since = min(went_on(run, winner, at, num_before))
    others = [each for pid in loser for each in run.commits(at).get(pid, ())]
    return {
        each["step"] for each in others if each["replicas"] < num_before or (each.at > since and each["step"] in steps)
    }


def agents(alternations: int) -> list[Line]:
    """Of three agents with two replicas each the coordinator's is killed, or another one: training goes on."""
    lines = []
    for name, index in (("the coordinator and its store killed", 0), ("another agent killed", 1)):
        took, failed = [], 0
        for _ in range(alternations):
            try:
                took.append(kill_agent(index))
                print(f"  {name}: {took[-1]:.2f} s", flush=True)
            except TrialFailed as error:
                failed += 1
                print(f"  {name}: {error}", file=sys.stderr)
        if took:
            lines.append(_times(f"{name}, until the others' next step", took, Bound.at_most(HANG_S)))
        lines.append(Line(name=f"{name}: trainings that did not go on", unit="", value=failed, bound=Bound.at_most(0)))
    return lines


def kill_agent(index: int, side: Side = OURS) -> float:
    """Return how long the others took to their next step. Agent 0 has the coordinator and the store."""
    with Run(side, 2, ENDLESS) as run:
        for number in range(3):
            run.start_node(num_hosts=3)
            if number == 0:
                run.wait(lambda: "this agent coordinates" in run.nodes[0].output, 30.0, "a coordinator")
        before = run.await_steady(6)
        pids = set(run.nodes[index].others())
        others = [pid for pid in before.values() if pid not in pids]
        at = run.nodes[index].kill_agent()

        def back() -> list[float]:
            commits = run.commits(at)
            found = [[each.at for each in commits.get(pid, ()) if each["replicas"] < 6] for pid in others]
            return [times[0] for times in found if times]

        run.wait(lambda: len(back()) == len(others), 3 * HANG_S, "the others' next step")
        return max(back()) - at


def doubles(num_schedules: int, seed: int) -> list[Line]:
    """Two killed at once, or the second up to a second after the first: in its recovery, or while state is sent."""
    random_ = random.Random(seed)
    took: list[float] = []
    failed = 0
    done = 0
    while done < num_schedules:
        with Run(OURS, options=ENDLESS) as run:
            try:
                run.start()
                after = 0.0
                while done < num_schedules:
                    done += 1
                    run.await_steady(after=after, steps=2)
                    first, second = random_.sample(range(4), 2)
                    delay_s = random_.choice([0.0, random_.uniform(0, 0.3), random_.uniform(0, 3.0)])
                    after, seconds = _double(run, first, second, delay_s)
                    took.append(seconds)
                    print(f"  two killed, {delay_s:.2f} s apart: {seconds:.2f} s", flush=True)
            except TrialFailed as error:
                failed += 1
                print(f"  two killed: {error}", file=sys.stderr)
                run.show()
    return [
        _times("two killed, until the survivors' next step", took, Bound.at_most(HANG_S), percent=100),
        Line(name="two killed: no next step within 10 s", unit="", value=failed, bound=Bound.at_most(0)),
    ]


def _double(run: Run, first: int, second: int, delay_s: float) -> tuple[float, float]:
    before = run.working(4, 0.0, 1)
    run.strike([first], "all-reduce")
    time.sleep(delay_s)
    at = time.monotonic()
    _signal(before[second], signal.SIGKILL)
    survivors = [pid for rank, pid in before.items() if rank not in (first, second)]

    def back() -> list[float]:
        commits = run.commits(at)
        found = [[each.at for each in commits.get(pid, ()) if each["step"] > step + 1] for pid in survivors]
        return [times[0] for times in found if times]

    run.journal.read()
    step = max(int(entry["step"]) for entry in run.journal.entries if entry.event in ("commit", "strike"))
    run.wait(lambda: len(back()) == len(survivors), HANG_S, "the survivors' next steps")
    return at, max(back()) - at


def _signal(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return  # it is gone


def _times(name: str, seconds: Sequence[float], bound: Bound, percent: float = 95) -> Line:
    """Return a line of the slowest: the bound holds every time."""
    details = {"median": median(seconds), "best": min(seconds), "trials": float(len(seconds))}
    return Line(name=name, unit="s", value=percentile(seconds, percent), bound=bound, details=details)
