"""Tensors go from node to node: not through the master, in all directions at once, and past a node that dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch

from multiworld import remote
from multiworld.remote import NodeDeadError, Nodes, RemoteOperationError
from multiworld.testing.deadlines import scaled
from tests.process.served_nodes import TOKEN, served_node

pytestmark = pytest.mark.process

LARGE = 1_000_000


@pytest.fixture(scope="module")
def all_nodes() -> Iterator[Nodes]:
    nodes = remote.local(3, num_threads=1)
    try:
        yield nodes
    finally:
        assert not nodes.close()


@pytest.fixture
def nodes(all_nodes: Nodes) -> Nodes:
    """All three are there: one that a test killed was replaced."""
    all_nodes.wait_alive(scaled(30))
    return all_nodes


def test_large_tensors_cross_each_other_and_no_byte_goes_through_the_master(nodes: Nodes) -> None:
    before = nodes.statistics
    sources = {number: [node.full((LARGE,), float(number)) for _ in range(2)] for number, node in nodes.items()}
    copies = [(number, each.to_node(other)) for number in nodes for each in sources[number] for other in nodes]
    for each in sources.values():
        each[0].add_(1)  # waits until it is sent, and changes no copy
    sums = [(number, copied.mean()) for number, copied in copies]
    nodes.synchronize()
    moved = nodes.statistics
    assert (moved.sent_bytes, moved.fetched_bytes) == (before.sent_bytes, before.fetched_bytes)
    assert all(mean.item() in {number, number + 1} for number, mean in sums)


def test_a_source_that_dies_spoils_its_copies_and_the_target_goes_on(nodes: Nodes) -> None:
    source, kept = nodes[1].ones(LARGE), nodes[3].ones(LARGE)
    assert source.to_node(2)[0].item() == 1
    os.kill(nodes[1].pid, signal.SIGSTOP)  # it takes the command, and sends nothing
    lost, came = source.to_node(2), kept.to_node(2)
    needs = lost + 1
    os.kill(nodes[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(RemoteOperationError, match=r"node 1 sends for to_node at .*test_remote_between\.py.*node 1 is"):
        needs.fetch()
    assert time.monotonic() - killed < scaled(1)
    assert came.sum().item() == LARGE
    nodes[1].wait_alive(scaled(30))
    with pytest.raises(NodeDeadError):
        source.to_node(2)
    assert came.to_node(1).sum().item() == LARGE  # over a world of the replaced node


def test_a_target_that_dies_leaves_the_source_at_work(nodes: Nodes) -> None:
    source = nodes[1].ones(LARGE)
    os.kill(nodes[3].pid, signal.SIGSTOP)
    copies = [source.to_node(3) for _ in range(3)]
    os.kill(nodes[3].pid, signal.SIGKILL)
    source.add_(1)
    assert source[0].item() == 2
    with pytest.raises(NodeDeadError):
        copies[0].fetch()


def test_nodes_at_addresses_meet_at_the_store_of_one_of_them() -> None:
    with served_node() as one, served_node() as other, remote.connect(f"{one},{other}", token=TOKEN) as nodes:
        there = nodes[1].arange(1000).to_node(2)
        assert torch.equal((there + 1).fetch(), torch.arange(1000) + 1)
        assert nodes.statistics.sent_bytes == 0


def test_collectives_of_real_nodes_and_one_that_dies_in_the_middle(nodes: Nodes) -> None:
    tensors = [node.full((LARGE,), float(number)) for number, node in nodes.items()]
    before = nodes.statistics
    remote.all_reduce(tensors)
    gathered = remote.all_gather(
        [tensor[:3] * node.number for tensor, node in zip(tensors, nodes.values(), strict=True)]
    )
    nodes.synchronize()
    moved = nodes.statistics
    assert (moved.sent_bytes, moved.fetched_bytes) == (before.sent_bytes, before.fetched_bytes)
    assert [tensor[-1].item() for tensor in tensors] == [6, 6, 6]
    assert [each.fetch().tolist() for each in gathered[1]] == [[6] * 3, [12] * 3, [18] * 3]

    outsider = nodes[3].ones(2)
    pair = [nodes[1].ones(LARGE), nodes[2].ones(LARGE)]
    os.kill(nodes[2].pid, signal.SIGSTOP)  # so that node 1 is in the middle
    remote.all_reduce(pair)
    kept = nodes[1].ones(2)
    os.kill(nodes[2].pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(RemoteOperationError, match=r"(?s)all_reduce failed on node 1.*node 2 is lost"):
        pair[0].fetch()
    assert time.monotonic() - killed < scaled(0.5)
    assert (kept + 1).tolist() == [2, 2]
    remote.all_reduce([kept, outsider])
    assert outsider.tolist() == [2, 2]
