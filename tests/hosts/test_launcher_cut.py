"""A host of a launched job is cut off: most go on, it never works beside them, and it waits or ends as it was told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.elastic.job import OURS, Job
from benchmarks.elastic.journal import Formation
from multiworld.testing import Network, scaled

pytestmark = pytest.mark.usefixtures("no_leaks")

NUM_HOSTS = 3
PORT = 29400
QUICK = ("--lease-s", "0.5", "--rdzv-conf", "last_call_timeout=1")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(NUM_HOSTS) as network:
        yield network


def job_on(network: Network, *options: str) -> Job:
    endpoint = f"{network.hosts[0].address}:{PORT}"
    return Job(OURS, nnodes=f"1:{NUM_HOSTS}", nproc=1, endpoint=endpoint, options=(*QUICK, *options))


def begin(job: Job, network: Network) -> Formation:
    for host in network.hosts:
        node = job.start_node(host)
        assert job.journal.wait(lambda node=node: "coordinat" in node.output, scaled(20))  # type: ignore[misc]
    return job.await_world(NUM_HOSTS, 0.0)


def test_the_coordinators_host_is_cut_off_and_comes_back_when_the_cable_does(network: Network) -> None:
    with job_on(network) as job:
        begin(job, network)
        at = network.hosts[0].cut()
        job.await_world(NUM_HOSTS - 1, at, scaled(10))
        assert job.nodes[0].returncode is None
        network.hosts[0].restore()
        whole = job.await_world(NUM_HOSTS, at, scaled(20))
        assert {entry["node"] for entry in whole.first_steps.values()} == {node.name for node in job.nodes}
        assert job.journal.overlaps() == []
        job.end()


def test_a_host_that_is_told_not_to_wait_ends_when_it_is_cut_off(network: Network) -> None:
    with job_on(network, "--cut-off-timeout", "0") as job:
        begin(job, network)
        at = network.hosts[2].cut()
        job.await_world(NUM_HOSTS - 1, at, scaled(10))
        lost = job.nodes[2]
        assert job.journal.wait(lambda: lost.returncode is not None, scaled(10))
        assert lost.returncode == 1
        assert "cut off from most of the job's other agents" in lost.output
        assert lost.wait_gone() == []
        assert [node.returncode for node in job.nodes[:2]] == [None, None]
        assert job.journal.overlaps() == []
        job.end()


def test_a_job_that_has_ended_is_not_begun_anew_by_a_host_that_was_cut_off(network: Network) -> None:
    with job_on(network) as job:
        begin(job, network)
        lost, others = job.nodes[2], job.nodes[:2]
        at = network.hosts[2].cut()
        job.await_world(NUM_HOSTS - 1, at, scaled(10))
        assert job.journal.wait(lambda: "the workers of this host are ended" in lost.output, scaled(10))
        assert others[0].end(scaled(10))
        assert job.journal.wait(lambda: others[1].returncode is not None, scaled(10))
        network.hosts[2].restore()
        assert job.journal.wait(lambda: lost.returncode is not None, scaled(10))
        assert lost.returncode == 1
        assert "either the job has ended without it" in lost.output
        begun = [entry for entry in job.journal.entries if entry.event == "begun" and entry["node"] == lost.name]
        assert len(begun) == 1
        assert job.journal.overlaps() == []
