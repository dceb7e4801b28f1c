"""Cuts of the network between simulated hosts: which side goes on, and that never both do. Needs root."""

from __future__ import annotations

import time
from dataclasses import replace

from multiworld.bench.report import Bound, Line
from multiworld.testing import Host, Network, hosts_available

from .comparison import Comparison, Outcome
from .job import OURS, Job, Side, TrialFailed

__all__ = ["cut"]

PORT = 29400
KNOWN_S = 10.0  # for the majority to go on, and for the minority's workers to be gone
BOTH = "times at which two generations worked under one name"
LEFT = "workers of the minority that were left"
CASES = {
    "a host of three cut off": (3, 2),
    "the coordinator's host of three cut off": (3, 0),
    "a host of two cut off from the coordinator": (2, 1),
}


def cut(alternations: int) -> list[Line]:
    """From the cut to the next all_reduce of the majority; then the cable is put back, and all must work again."""
    reason = hosts_available()
    if reason is not None:
        return [Line.not_measured(name, reason) for name in CASES]
    return [
        line for name, (num_hosts, index) in CASES.items() for line in _measure(name, num_hosts, index, alternations)
    ]


def _measure(name: str, num_hosts: int, index: int, alternations: int) -> list[Line]:
    until_gone, until_healed = f"{name}, until its workers are gone", f"{name}, healed until all work again"

    def trial(side: Side) -> Outcome:
        with Network(num_hosts) as network:
            outcome, gone_s, healed_s = _cut_off(side, network, index)
        return replace(outcome, more={until_gone: gone_s, until_healed: healed_s})

    comparison = Comparison(name, [OURS], cap_s=KNOWN_S)
    comparison.run(trial, alternations)
    bound = Bound.at_most(KNOWN_S)
    return comparison.lines({OURS.name: bound}, {until_gone: bound, until_healed: bound})


def _cut_off(side: Side, network: Network, index: int) -> tuple[Outcome, float, float]:
    hosts = network.hosts
    with Job(side, nnodes=f"1:{len(hosts)}", nproc=1, endpoint=f"{hosts[0].address}:{PORT}") as job:
        nodes = []
        for host in hosts:
            nodes.append(job.start_node(host))
            if len(nodes) == 1:
                _await_coordinator(job)
        before = job.await_world(len(hosts), 0.0)
        job.await_steps(before)
        victims = {entry.pid for entry in before.first_steps.values() if entry["node"] == nodes[index].name}
        at = hosts[index].cut()
        after = job.await_world(len(hosts) - 1, at, KNOWN_S)
        job.await_steps(after)
        job.journal.wait(lambda: not victims & set(nodes[index].others()), KNOWN_S)
        gone_s = time.monotonic() - at
        left = len(victims & set(nodes[index].others()))
        healed_at = _heal(hosts[index])
        whole = job.await_world(len(hosts), healed_at, 3 * KNOWN_S)
        job.await_steps(whole)
        wrong = {BOTH: len(job.journal.overlaps()), LEFT: left}
        job.end()
        return Outcome(after.complete_at - at, wrong), gone_s, whole.complete_at - healed_at


def _await_coordinator(job: Job) -> None:
    if not job.journal.wait(lambda: "this agent coordinates" in job.nodes[0].output, 30.0):
        raise TrialFailed(f"{job.side.name}: the first agent does not coordinate after 30 s")


def _heal(host: Host) -> float:
    at = time.monotonic()
    host.restore()
    return at
