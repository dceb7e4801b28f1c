"""Collectives of real nodes with a member that fails: each output is right, or an error that names the cause."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld import remote
from multiworld.remote import NodeDeadError, Nodes, RemoteOperationError
from multiworld.testing import wait_until
from multiworld.testing.deadlines import scaled

pytestmark = pytest.mark.process

LEASE_S = 1.0
MEMBERS = (1, 2, 3)
OUTSIDER = 4
LARGE = 2_000_000
NUM_IN_A_ROW = 30
BUSY_S = 0.02  # of a member's processor time: then its part of the first collectives has run


@pytest.fixture(scope="module")
def all_nodes() -> Iterator[Nodes]:
    nodes = remote.local(4, lease_s=LEASE_S, num_threads=1)
    try:
        yield nodes
    finally:
        assert not nodes.close()


@pytest.fixture
def nodes(all_nodes: Nodes) -> Nodes:
    """All four are there: one that a test killed was replaced."""
    all_nodes.wait_alive(scaled(30))
    return all_nodes


def ones(nodes: Nodes, size: int) -> list[Any]:
    return [nodes[number].ones(size) for number in MEMBERS]


def processor_s(pid: int) -> float:
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def test_an_input_whose_operation_failed_spoils_the_outputs_and_nothing_else(nodes: Nodes) -> None:
    index = nodes[2].send(torch.tensor([9]))
    failed = nodes[2].zeros(3).index_select(0, index).expand(LARGE).clone()
    inputs = [nodes[1].ones(LARGE), failed, nodes[3].ones(LARGE)]
    kept = nodes[1].ones(2)
    gathered = remote.gather(inputs)
    remote.all_reduce(inputs)
    for lost in (*gathered, *inputs, inputs[0] + 1):
        with pytest.raises(RemoteOperationError, match=r"index_select\.default failed on node 2"):
            lost[-1:].fetch()
    others = [kept, *(nodes[number].ones(2) for number in (2, 3))]
    remote.all_reduce(others)
    assert [each.tolist() for each in others] == [[3, 3]] * 3


def test_a_member_killed_among_the_data_leaves_right_sums_or_errors(nodes: Nodes) -> None:
    outside = nodes[OUTSIDER].ones(2)
    rows = [ones(nodes, LARGE) for _ in range(NUM_IN_A_ROW)]
    remote.all_reduce(ones(nodes, LARGE))  # so that their world stands
    nodes.synchronize()
    pid = nodes[2].pid
    until = processor_s(pid) + BUSY_S
    for row in rows:
        remote.all_reduce(row)
    assert wait_until(lambda: processor_s(pid) > until, 10, poll_s=0.001)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    for place in (0, 2):
        came = [outcome(row[place]) for row in rows]
        assert time.monotonic() - killed < scaled(2)
        num_right = sum(each == "right" for each in came)
        assert came == ["right"] * num_right + ["node 2 is lost"] * (NUM_IN_A_ROW - num_right)
        assert num_right < NUM_IN_A_ROW
    with pytest.raises(NodeDeadError):
        rows[-1][1].fetch()
    pair = [nodes[1].ones(2), outside]
    remote.all_reduce(pair)
    assert outside.tolist() == [2, 2]


def outcome(tensor: Any) -> str:
    try:
        values = tensor.fetch()
    except RemoteOperationError as error:
        return "node 2 is lost" if "node 2 is lost" in str(error) else str(error)
    return "right" if bool((values == len(MEMBERS)).all()) else "wrong"


def test_a_member_that_stands_still_spoils_the_outputs_after_the_lease(nodes: Nodes) -> None:
    outside = nodes[OUTSIDER].ones(2)
    tensors, inputs = ones(nodes, LARGE), ones(nodes, 2)
    remote.all_reduce(ones(nodes, 2))
    nodes.synchronize()
    os.kill(nodes[2].pid, signal.SIGSTOP)
    stopped = time.monotonic()
    gathered = remote.gather(inputs)
    remote.all_reduce(tensors)
    pair = [nodes[3].ones(2), outside]  # node 3 is in the collective: what follows there waits with it
    remote.all_reduce(pair)
    for lost in (*gathered, tensors[0], tensors[2]):
        with pytest.raises(RemoteOperationError, match="node 2 is lost"):
            lost.fetch()
    assert time.monotonic() - stopped < scaled(LEASE_S + 0.5)
    with pytest.raises(NodeDeadError):
        tensors[1].fetch()
    assert [inputs[place].tolist() for place in (0, 2)] == [[1, 1]] * 2
    assert [each.tolist() for each in pair] == [[2, 2]] * 2
