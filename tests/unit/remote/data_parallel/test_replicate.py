"""Replicas on several nodes train as one model in one process, and stay equal to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multiworld import remote
from multiworld.remote.errors import NodeDeadError, PlaceMismatchError
from multiworld.remote.session.sync_points import no_sync

from ..fake_node import values
from ..fake_nodes import FakeNodes

Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(12, 6), torch.randint(3, (12,))) for _ in range(4)]


def train(parallel: Any, optimizer: torch.optim.Optimizer) -> None:
    for inputs, labels in batches():
        outputs = parallel(inputs)
        losses = [
            nn.functional.cross_entropy(output, part)
            for output, part in zip(outputs, parallel.split(labels), strict=True)
        ]
        optimizer.zero_grad()
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


OPTIMIZERS: list[Make] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
]


@pytest.mark.parametrize("number", range(3))
def test_replicas_stay_equal_and_train_as_one_model(nodes: FakeNodes, number: int) -> None:
    local = model()
    parallel = remote.replicate(local, nodes.values())
    with no_sync():
        train(parallel, OPTIMIZERS[number](parallel.parameters()))
    optimizer = OPTIMIZERS[number](local.parameters())
    for inputs, labels in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found = [[values(each) for each in replica.parameters()] for replica in parallel.replicas]
    for place in (1, 2):
        assert all(torch.equal(one, other) for one, other in zip(found[0], found[place], strict=True))
    for there, here in zip(found[0], local.parameters(), strict=True):
        torch.testing.assert_close(there, here.detach())


def test_sums_that_are_exact_give_the_very_same_parameters(nodes: FakeNodes) -> None:
    local = nn.Linear(4, 1)
    with torch.no_grad():
        for each in local.parameters():
            each.fill_(1)
    parallel = remote.replicate(local, [nodes[1], nodes[2]])
    inputs = torch.arange(32.0).view(8, 4)
    for output in parallel(inputs):
        output.mean().backward()
    local(inputs).mean().backward()
    for replica in parallel.replicas:
        for there, here in zip(replica.parameters(), local.parameters(), strict=True):
            assert there.grad is not None
            assert here.grad is not None
            assert torch.equal(values(there.grad), here.grad)


def test_gradients_that_are_accumulated_are_averaged_in_sum(nodes: FakeNodes) -> None:
    parallel = remote.replicate(nn.Linear(2, 1, bias=False), [nodes[1], nodes[2]])
    for scale in (1.0, 3.0):
        for place, output in enumerate(parallel(torch.ones(2, 2) * scale)):
            (output * (place + 1)).sum().backward()
    for replica in parallel.replicas:
        assert values(replica.weight.grad).tolist() == [[6.0, 6.0]]  # type: ignore[arg-type]


def test_a_model_on_a_node_is_copied_from_node_to_node(nodes: FakeNodes) -> None:
    there = nodes[1].load(nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100)))
    with no_sync():
        parallel = remote.replicate(there, [nodes[1], nodes[3]])
    assert {each.get_node() for each in parallel.replicas[1].state_dict().values()} == {3}
    for name, value in parallel.module.state_dict().items():
        assert torch.equal(values(value), values(parallel.replicas[1].state_dict()[name]))
    assert parallel.module is not there
    copied = nodes[2].load(copy.deepcopy(there))
    assert {each.get_node() for each in copied.state_dict().values()} == {2}


def test_a_batch_for_each_replica_may_be_given_and_one_that_does_not_split_is_refused(nodes: FakeNodes) -> None:
    parallel = remote.replicate(nn.Linear(2, 1), [nodes[1], nodes[2]])
    outputs = parallel([torch.ones(3, 2), nodes[2].ones(5, 2)])
    assert [tuple(each.shape) for each in outputs] == [(3, 1), (5, 1)]
    with pytest.raises(ValueError, match=r"\(3, 2\) for 2 replicas: 3 / 2 is not a whole number"):
        parallel(torch.ones(3, 2))
    with pytest.raises(ValueError, match="a list of 1 for 2 replicas"):
        parallel([torch.ones(3, 2)])
    assert [values(each)[0].item() for each in parallel.split(nodes[1].arange(4))] == [0, 2]


def test_a_replica_without_a_gradient_is_told_before_the_next_batch(nodes: FakeNodes) -> None:
    parallel = remote.replicate(nn.Linear(2, 1), [nodes[1], nodes[2]])
    parallel(torch.ones(2, 2))[0].sum().backward()
    with pytest.raises(RuntimeError, match=r"has a gradient on the replicas \[0\] of 2"):
        parallel(torch.ones(2, 2))


def test_a_lost_node_ends_the_step_and_the_rest_is_replicated_again(nodes: FakeNodes) -> None:
    parallel = remote.replicate(model(), nodes.values())
    outputs = parallel(torch.ones(3, 6))
    nodes.lose(3)
    for output in outputs[:2]:
        output.sum().backward()
    with pytest.raises(NodeDeadError, match="node 3"):
        outputs[2].sum().backward()
    again = remote.replicate(parallel.module, [nodes[1], nodes[2]])
    for output in again(torch.ones(2, 6)):
        output.sum().backward()
    assert values(next(again.replicas[1].parameters())).shape == (8, 6)


@pytest.mark.parametrize(("places", "error"), [((), ValueError), ((1, 1), ValueError)])
def test_no_node_and_a_node_twice_are_refused(
    nodes: FakeNodes, places: tuple[int, ...], error: type[Exception]
) -> None:
    with pytest.raises(error, match="at least one node, each once"):
        remote.replicate(nn.Linear(1, 1), [nodes[place] for place in places])


def test_lists_of_several_nodes_are_split_and_pairs_of_two_nodes_are_refused(nodes: FakeNodes) -> None:
    tensors = [nodes[1].ones(2), nodes[2].ones(2), nodes[1].ones(2)]
    doubled = torch._foreach_mul(tensors, [1.0, 2.0, 3.0])
    assert [values(each)[0].item() for each in doubled] == [1, 2, 3]
    torch._foreach_add_(tensors, doubled)
    assert [values(each)[0].item() for each in tensors] == [2, 3, 4]
    with pytest.raises(PlaceMismatchError):
        torch._foreach_add_(tensors[:1], tensors[1:2])
