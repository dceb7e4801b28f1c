"""Streams of nodes that are processes: random programs against an oracle, and ends in the middle of work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from benchmarks.remote.stream_programs import mismatches
from multiworld import remote
from multiworld.remote import NodeDeadError, Nodes
from multiworld.testing import wait_until
from multiworld.testing.deadlines import scaled

pytestmark = pytest.mark.process

PROGRAMS = 25


def num_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.fixture(scope="module")
def all_nodes() -> Iterator[Nodes]:
    nodes = remote.local(1, num_threads=1)
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def node(all_nodes: Nodes) -> remote.Node:
    """It is there: one that a test killed was replaced."""
    all_nodes.wait_alive(scaled(30))
    return all_nodes[1]


def test_random_programs_on_three_streams_compute_what_one_does(node: remote.Node) -> None:
    assert mismatches(node, range(PROGRAMS)) == []
    node.synchronize()
    node.synchronize()
    assert node.statistics.num_tensors == 0


def test_the_thread_of_a_stream_computes_as_the_first_one_and_ends_with_it(node: remote.Node) -> None:
    node.synchronize()
    before = num_threads(node.pid)
    x = node.send(torch.randn(300, 300, generator=torch.Generator().manual_seed(1)))
    with node.stream() as stream:
        product = x @ x
    assert torch.equal(product.cpu(), (x @ x).cpu())
    assert num_threads(node.pid) == before + 1
    stream.close()
    assert wait_until(lambda: num_threads(node.pid) == before, scaled(10))


def test_copies_pass_a_busy_stream_and_all_waits_end_when_the_node_is_killed(node: remote.Node) -> None:
    here = torch.ones(4 * 1024 * 1024)
    streams = [node.stream() for _ in range(3)]
    slow, there = node.ones(512, 512), node.send(here)
    for _ in range(1000):
        slow = slow @ slow * 0.001
    late = node.default_stream.record_event()
    with streams[0]:
        assert torch.equal(node.send(here).cpu(), here)
        assert torch.equal(there.cpu(), here)
        needs = slow + 1
    assert not late.query()
    for stream in streams:
        stream.wait_event(late)
    os.kill(node.pid, signal.SIGKILL)
    for wait in (needs.cpu, late.synchronize, streams[1].synchronize, streams[2].__enter__):
        with pytest.raises(NodeDeadError):
            wait()
    node.wait_alive(scaled(30))
    with node.stream():
        assert node.ones(2).add_(1).tolist() == [2, 2]
