"""A training on hosts whose network is parted: one side at most goes on, and the others come back as newcomers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from benchmarks.training.disturbed import committed_on_both, start_on_hosts, went_on
from benchmarks.training.faithful import count_samples
from benchmarks.training.run import Run
from benchmarks.training.sides import OURS
from benchmarks.training.tasks import TASKS
from multiworld.testing import Host, Network, scaled

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.timeout(scaled(180)),
]

NUM_HOSTS, GLOBAL_BATCH = 4, 32
NUM_SEEN = 40
GO_ON_S, COME_BACK_S = 20.0, 60.0
OPTIONS = ("--task", "clusters", "--dropout", "0", "--steps", "1000000", "--pause-s", "0.02", "--lease-s", "1", "--ids")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    with Network(NUM_HOSTS) as network:
        yield network.hosts


@pytest.fixture
def run(hosts: tuple[Host, ...]) -> Iterator[Run]:
    with Run(OURS, 1, OPTIONS) as run:
        yield run


def part(one: Sequence[Host], other: Sequence[Host]) -> float:
    return min(host.drop(to=each, direction="both") for host in one for each in other)


def heal(run: Run, hosts: Sequence[Host], after: float) -> None:
    """Undo all faults, and wait until all replicas train together again."""
    for host in hosts:
        host.restore()
        host.heal()
    run.wait(lambda: len(together(run, after)) == NUM_HOSTS, scaled(COME_BACK_S), f"{NUM_HOSTS} replicas together")


def together(run: Run, after: float) -> set[int]:
    """Return the processes that have committed a step of all hosts' replicas in a generation that began after that."""
    since = max((entry.at for entry in run.journal.entries if entry.event == "members"), default=after)
    commits = run.commits(max(after, since))
    return {pid for pid, entries in commits.items() if any(entry["replicas"] == NUM_HOSTS for entry in entries)}


def assert_only_one_side_commits(run: Run, winner: Sequence[int], loser: Sequence[int], at: float) -> None:
    def seen() -> bool:
        return len(run.commits(max(went_on(run, winner, at, NUM_HOSTS))).get(winner[0], ())) >= NUM_SEEN

    run.wait(seen, scaled(GO_ON_S), f"{NUM_SEEN} more steps")
    assert committed_on_both(run, winner, loser, at, NUM_HOSTS) == set()


def assert_each_sample_counts_once(run: Run) -> None:
    run.journal.read()
    newest = max(entry["step"] for entry in run.journal.entries if entry.event == "commit")
    entries = [entry for entry in run.journal.entries if entry.fields.get("step", newest) < newest]
    commits = [entry for entry in entries if entry.event == "commit"]
    assert {entry["step"] for entry in commits} == set(range(newest))
    losses = {(entry["step"], entry["loss"]) for entry in commits}
    assert len(losses) == newest  # of each step, all that committed it had the same
    assert count_samples(entries, GLOBAL_BATCH, len(TASKS["clusters"].dataset())) == (0, 0)  # type: ignore[arg-type]


def test_of_two_halves_one_goes_on_and_the_other_comes_back_as_newcomers(hosts: tuple[Host, ...], run: Run) -> None:
    replicas = start_on_hosts(run, hosts)
    at = part(hosts[:2], hosts[2:])
    halves = [replicas[:2], replicas[2:]]
    run.wait(lambda: any(went_on(run, half, at, NUM_HOSTS) for half in halves), scaled(GO_ON_S), "one half's next step")
    winner, loser = halves if went_on(run, halves[0], at, NUM_HOSTS) else halves[::-1]
    assert_only_one_side_commits(run, winner, loser, at)
    heal(run, hosts, at)
    assert together(run, at) >= set(winner)
    assert_each_sample_counts_once(run)


def test_training_goes_on_when_the_stores_host_is_cut_off_and_takes_it_in_again(
    hosts: tuple[Host, ...], run: Run
) -> None:
    replicas = start_on_hosts(run, hosts)
    at = hosts[0].cut()
    run.wait(lambda: bool(went_on(run, replicas[1:], at, NUM_HOSTS)), scaled(GO_ON_S), "the others' next step")
    assert_only_one_side_commits(run, replicas[1:], replicas[:1], at)
    heal(run, hosts, at)
    assert_each_sample_counts_once(run)


def test_a_one_way_cut_costs_one_replica_at_most(hosts: tuple[Host, ...], run: Run) -> None:
    """The first of these hosts hears nothing of the other one; both reach all others, and the store."""
    replicas = start_on_hosts(run, hosts)
    at = hosts[2].drop(to=hosts[1], direction="out")
    survivors = [[*replicas[:1], replicas[each], *replicas[3:]] for each in (1, 2)]
    run.wait(lambda: any(went_on(run, each, at, NUM_HOSTS) for each in survivors), scaled(GO_ON_S), "the next step")
    heal(run, hosts, at)
    assert_each_sample_counts_once(run)
