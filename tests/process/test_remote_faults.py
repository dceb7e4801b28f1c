"""Nodes that are killed, stopped, or lose their master in the middle of work: the others go on, and nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from multiworld import remote
from multiworld.remote import NodeDeadError, NodeJoined, NodeLost, Nodes
from multiworld.testing import wait_until
from multiworld.testing.deadlines import scaled
from tests.unit.remote.functions_of_nodes import fail_on_gpu

pytestmark = pytest.mark.process

LEASE_S = 1.0
MASTER = """\
import sys
import torch
from multiworld import remote
nodes = remote.local(1, num_threads=1)
x = nodes[1].ones(10)
print(nodes[1].pid, flush=True)
sys.stdin.read(1)
while True:
    x.add_(1)
"""


@pytest.fixture(scope="module")
def all_nodes() -> Iterator[Nodes]:
    nodes = remote.local(3, lease_s=LEASE_S, num_threads=1)
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def nodes(all_nodes: Nodes) -> Nodes:
    """All three are there: one that a test killed was replaced."""
    all_nodes.wait_alive(scaled(30))
    return all_nodes


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_others_lose_nothing_when_a_node_is_killed_and_its_replacement_has_the_next_generation(nodes: Nodes) -> None:
    events = nodes.events()
    sums = {number: node.zeros(20, 20) for number, node in nodes.items()}
    for _ in range(500):
        for each in sums.values():
            each.add_(1)
    generation, pid = nodes[1].generation, nodes[1].pid
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(NodeDeadError, match=r"item needs node 1.*\n.*test_remote_faults\.py"):
        sums[1][0, 0].item()
    assert time.monotonic() - killed < scaled(2)
    for _ in range(500):
        for each in sums.values():
            each.add_(1)
    assert [sums[number][0, 0].item() for number in (2, 3)] == [1000, 1000]
    nodes[1].wait_alive(scaled(30))
    assert (nodes[1].generation, nodes[1].pid == pid) == (generation + 1, False)
    new = nodes[1].ones(20, 20)
    with pytest.raises(NodeDeadError, match="needs node 1"):
        new + sums[1]
    assert new.sum().item() == 400

    async def two() -> list[object]:
        return [await anext(events), await anext(events)]

    lost, joined = asyncio.run(two())
    assert isinstance(lost, NodeLost)
    assert isinstance(joined, NodeJoined)
    assert (lost.node, lost.generation, joined.generation) == (1, generation, generation + 1)


def test_a_stopped_node_is_lost_after_its_lease(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    x = nodes[2].ones(3)
    assert x.sum().item() == 3
    os.kill(nodes[2].pid, signal.SIGSTOP)
    stopped = time.monotonic()
    with pytest.raises(NodeDeadError, match="it is stopped"):
        x.fetch()
    assert time.monotonic() - stopped < scaled(LEASE_S + 2)
    nodes[2].wait_alive(scaled(30))
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    (warning,) = [each for each in warnings if "lost" in each]
    assert warning.startswith("node 2 is lost: it is stopped")
    assert nodes[3].ones(3).sum().item() == 3


@pytest.mark.parametrize("direction", ["to the node", "from the node"])
def test_a_node_that_dies_while_a_large_tensor_is_under_way(nodes: Nodes, direction: str) -> None:
    node = nodes[3]
    there = node.zeros(1 << 25)
    node.synchronize()
    killer = threading.Timer(0.02, os.kill, (node.pid, signal.SIGKILL))
    killer.start()
    here = torch.zeros(1 << 25)

    def copy_until_it_dies() -> None:
        while True:
            if direction == "to the node":
                node.send(here)
            else:
                there.fetch()

    with pytest.raises(NodeDeadError, match="node 3"):
        copy_until_it_dies()
    killer.join()


def test_eight_threads_lose_no_command_and_leave_no_tensor(nodes: Nodes) -> None:
    node = nodes[1]
    node.synchronize()
    before = node.statistics.num_tensors
    sums: list[float] = []

    def work(number: int) -> None:
        total, one = node.zeros(4), node.ones(4)
        for step in range(300):
            cycle: list[object] = [total + one + step - step]
            cycle.append(cycle)  # only the garbage collector frees what is in it, in whichever thread it runs
            total = total + one
        sums.append(total[0].item())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [300.0] * 8
    gc.collect()
    node.synchronize()
    node.synchronize()  # what was freed goes with the batch of the first
    assert node.statistics.num_tensors == before


def test_a_node_ends_with_a_master_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MASTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as master:
        assert master.stdin is not None
        assert master.stdout is not None
        pid = int(master.stdout.readline())
        master.stdin.write("\n")
        master.stdin.flush()
        master.kill()
    assert wait_until(lambda: not is_there(pid), timeout_s=scaled(10))


def test_a_node_whose_gpu_is_unusable_ends_with_the_reason_and_is_replaced() -> None:
    name = f"{fail_on_gpu.__module__}:fail_on_gpu"
    with remote.local(1, num_threads=1, calls=[name]) as nodes:
        pid = nodes[1].pid
        lost = nodes[1].call(name, 710, like=torch.empty(1))
        with pytest.raises(
            NodeDeadError, match=rf"(?s)can't be used any more: CUDA error: .* noticed in {name} at .*\.py"
        ):
            lost.fetch()
        nodes[1].wait_alive(scaled(30))
        assert nodes[1].pid != pid
        assert nodes[1].ones(2).tolist() == [1, 1]
