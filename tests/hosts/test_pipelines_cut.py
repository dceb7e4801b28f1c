"""A training in pipelines on two hosts that are parted: each has all layers, so one goes on, and takes the other in."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks.training.disturbed import PORT, committed_on_both, went_on
from benchmarks.training.run import Run
from benchmarks.training.sides import OURS_PIPELINES
from multiworld.testing import Host, Network, scaled

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.timeout(scaled(240)),
]

EACH_HOST = 2
NUM_PROCESSES = 2 * EACH_HOST
"""Two pipelines of two stages."""

NUM_SEEN = 20
START_S, GO_ON_S, COME_BACK_S = 90.0, 20.0, 60.0
OPTIONS = ("--task", "clusters", "--dropout", "0", "--steps", "1000000", "--pause-s", "0.02")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    with Network(2) as network:
        yield network.hosts


@pytest.fixture
def run(hosts: tuple[Host, ...]) -> Iterator[Run]:
    with Run(OURS_PIPELINES, EACH_HOST, OPTIONS) as run:
        for number, host in enumerate(hosts):
            run.start_node(host, endpoint=f"{hosts[0].address}:{PORT}", num_hosts=2)
            if number == 0:
                run.wait(lambda: "this agent coordinates" in run.nodes[0].output, scaled(30.0), "a coordinator")
        yield run


def together(run: Run, after: float) -> set[int]:
    """Return the processes that have committed a step of all of them in a generation that began after that."""
    since = max((entry.at for entry in run.journal.entries if entry.event == "members"), default=after)
    commits = run.commits(max(after, since))
    return {pid for pid, entries in commits.items() if any(entry["replicas"] == NUM_PROCESSES for entry in entries)}


def test_of_two_halves_one_has_all_layers_and_takes_the_other_one_in_again(hosts: tuple[Host, ...], run: Run) -> None:
    """A process is killed before: its replacement must get layers that are on the other host alone."""
    killed = min(run.await_steady(NUM_PROCESSES, timeout_s=scaled(START_S)).values())
    os.kill(killed, signal.SIGKILL)
    run.wait(
        lambda: len(together(run, 0.0) - {killed}) == NUM_PROCESSES, scaled(COME_BACK_S), "all, with a replacement"
    )
    processes = together(run, 0.0)
    halves = [[pid for pid in node.others() if pid in processes] for node in run.nodes]
    at = hosts[1].cut()

    def seen() -> bool:
        commits = run.commits(at)
        return any(
            went_on(run, half, at, NUM_PROCESSES) and len(commits.get(half[0], ())) >= NUM_SEEN for half in halves
        )

    run.wait(seen, scaled(GO_ON_S), f"{NUM_SEEN} more steps of one half")
    winner, loser = halves if went_on(run, halves[0], at, NUM_PROCESSES) else halves[::-1]
    assert committed_on_both(run, winner, loser, at, NUM_PROCESSES) == set()
    hosts[1].restore()
    hosts[1].heal()
    run.wait(lambda: len(together(run, at)) == NUM_PROCESSES, scaled(COME_BACK_S), "both halves together")
    assert together(run, at) >= set(winner)
    commits = [entry for entry in run.journal.entries if entry.event == "commit"]
    losses = {(entry["step"], entry["loss"]) for entry in commits}
    assert {step for step, _ in losses} == set(range(len(losses)))  # each step, and all had the same
