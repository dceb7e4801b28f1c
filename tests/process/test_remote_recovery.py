"""Nodes that are killed in the middle of work, and made anew: the program goes on, and computes the same bits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest
import torch
from torch import Tensor, nn

from multiworld import remote
from multiworld.remote import NodeReturnsError, Nodes
from multiworld.testing import wait_until
from multiworld.testing.deadlines import scaled

pytestmark = pytest.mark.process

STEPS = 40


@pytest.fixture(scope="module")
def all_nodes() -> Iterator[Nodes]:
    nodes = remote.local(2, lease_s=1.0, num_threads=1)
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def nodes(all_nodes: Nodes) -> Nodes:
    all_nodes.wait_alive(scaled(30))
    return all_nodes


def kill(nodes: Nodes, number: int = 1) -> int:
    """Kill a node, and return its generation."""
    generation = nodes[number].generation
    os.kill(nodes[number].pid, signal.SIGKILL)
    return generation


def kill_when_waiting(nodes: Nodes) -> threading.Thread:
    """Kill the node once this program waits for it."""
    before = nodes.statistics.syncs

    def run() -> None:
        assert wait_until(lambda: nodes.statistics.syncs > before, 30, poll_s=0.001)
        kill(nodes)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def train(nodes: Nodes, before_step: Callable[[int], object] = lambda step: None) -> list[Tensor]:
    """Train with dropout, an optimizer that keeps a state, and a wait in the middle of each fifth step."""
    nodes[1].manual_seed(3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 3))
        batches = [(torch.randn(32, 20), torch.randint(3, (32,))) for _ in range(STEPS)]
    nodes[1].load(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step, (inputs, labels) in enumerate(batches):
        before_step(step)
        loss = nn.functional.cross_entropy(model(nodes[1].send(inputs)), nodes[1].send(labels))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if step % 5 == 0:
            losses.append(loss.item())
        optimizer.step()
    return [torch.tensor(losses), *(each.detach().cpu() for each in model.parameters())]


def test_a_training_whose_node_is_killed_three_times_gives_the_same_bits(nodes: Nodes) -> None:
    undisturbed = train(nodes)
    rng = Random(7)
    kills = set(rng.sample(range(1, STEPS), 3))
    beside = nodes[2].zeros(3)
    with remote.recoverable(every_s=0.2) as recoverable:
        disturbed = train(nodes, lambda step: step in kills and kill(nodes))
        for _ in range(100):
            beside.add_(1)
        statistics = recoverable.statistics
    assert [torch.equal(one, other) for one, other in zip(undisturbed, disturbed, strict=True)] == [True] * 5
    assert statistics[1].num_recoveries == 3, kills
    assert statistics[1].num_snapshots >= 1
    assert statistics[2].num_recoveries == 0
    assert beside.cpu().tolist() == [100] * 3


def test_a_loop_that_gets_the_error_goes_on(nodes: Nodes) -> None:
    torch.manual_seed(0)
    big = torch.randn(500, 500)  # travels beside the commands
    with remote.recoverable(raises=True):
        there: Tensor = nodes[1].send(big)
        total: Tensor = nodes[1].zeros(())
        nodes[1].synchronize()
        errors = []
        for step in range(6):
            try:
                total = total + there.sum()
                if step % 3 == 1:
                    slow = there
                    for _ in range(60):
                        slow = slow @ there
                    killer = kill_when_waiting(nodes)
                total.item()
            except NodeReturnsError as error:
                errors.append(error)
                nodes[1].wait_alive(scaled(30))
                continue
            finally:
                if step % 3 == 1:
                    killer.join()
        result = total.cpu()
    wanted = torch.zeros(())
    for _ in range(6):
        wanted = wanted + big.sum()
    assert torch.equal(result, wanted)
    assert [error.operation for error in errors] == ["item", "item"]
