"""Devices of a node: the master knows the place; a node that has no such device fails at the first fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from multiworld.remote import DeviceNameError, Node, RemoteOperationError
from multiworld.remote.tensor.devices import device_of, empty_on, moved_to
from multiworld.remote.tensor.remote_tensor import RemoteTensor
from tests.unit.remote.fake_node import values

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the node of this test must have no GPU")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, "cpu"), (-1, "cpu"), (0, "cuda:0"), (3, "cuda:3"), ("cuda", "cuda:0"), (torch.device("cuda:1"), "cuda:1")],
)
def test_what_names_a_device(given: int | str | torch.device | None, expected: str) -> None:
    assert device_of(given) == torch.device(expected)


def test_what_names_none_is_refused() -> None:
    with pytest.raises(ValueError, match="device=-2: expected the index of a GPU of the node"):
        device_of(-2)
    with pytest.raises(TypeError, match="device=True"):
        device_of(True)


def test_cuda_knows_its_place_here_whether_the_node_has_it_or_not(node: Node) -> None:
    x = node.send(torch.ones(2, 3))
    there = x.cuda()
    assert (there.get_node(), there.get_device(), x.get_device()) == (1, 0, -1)
    assert x.cuda(1).get_device() == 1
    assert there.cuda() is there
    total = there + there
    assert isinstance(total, RemoteTensor)
    assert total.get_device() == 0


@needs_no_gpu
def test_a_node_without_it_fails_at_the_first_fetch_with_operation_node_and_line(node: Node) -> None:
    there = node.send(torch.ones(2)).cuda()
    with pytest.raises(RemoteOperationError, match=r"_to_copy\S* failed on node 1") as failed:
        values(there + 1)
    assert "test_devices.py" in failed.value.line
    assert "the node has no device cuda:0; its devices: cpu" in str(failed.value)
    made = empty_on(RemoteTensor, node.session(), (10,), torch.float32, torch.device("cuda:1"))
    assert made.get_device() == 1
    with pytest.raises(RemoteOperationError, match=r"empty\S* failed on node 1"):
        made.fetch()


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), (1, 1), (torch.device("cuda:2"), 2), (-1, -1), (None, -1)])
def test_functions_of_a_node_make_tensors_on_its_devices(node: Node, device: Any, index: int) -> None:
    like = node.zeros(2, device=device)
    made = [
        like,
        node.randn(2, 3, device=device),
        node.tensor([1.0, 2.0], device=device),
        node.arange(3, device=device, dtype=torch.float32),
        node.full((2,), 3, device=device),
        node.zeros_like(like, device=device),
        node.randint(3, (4,), device=device),
    ]
    assert [(type(each), each.get_device()) for each in made] == [(RemoteTensor, index)] * len(made)


@pytest.mark.parametrize(("device", "index"), [("cpu", -1), ("cuda:0", 0), (2, 2), (None, 1)])
def test_functions_like_a_tensor_make_theirs_on_the_device_that_is_named(node: Node, device: Any, index: int) -> None:
    like = node.zeros(2, device="cuda:1")
    made = [
        node.zeros_like(like, device=device),
        node.full_like(like, 3, device=device),
        node.as_tensor(like, device=device),
    ]
    assert [each.get_device() for each in made] == [index] * 3


def test_functions_of_a_node_refuse_what_names_no_device(node: Node) -> None:
    with pytest.raises(ValueError, match="device=-2: expected the index of a GPU of the node"):
        node.zeros(2, device=-2)
    with pytest.raises(RuntimeError, match="qpu"):
        node.zeros(2, device="qpu")


def test_gradients_come_back_to_the_device_of_what_was_copied(node: Node) -> None:
    x = node.send(torch.ones(3)).requires_grad_()
    there = x.cuda()
    assert there.requires_grad
    (gradient,) = torch.autograd.grad(there.sum(), x)
    assert isinstance(gradient, RemoteTensor)
    assert gradient.get_device() == -1


def test_a_tensor_that_is_there_is_not_copied(node: Node) -> None:
    x = node.send(torch.ones(3))
    assert moved_to(x, torch.device("cpu")) is x


@pytest.mark.parametrize(
    "use",
    [
        lambda node: node.ones(2).to("remote:1"),
        lambda node: node.ones(2).to(device="remote:2", dtype=torch.float64),
        lambda node: node.ones(2).cuda("remote:1"),
        lambda node: node.ones(2).new_tensor([1.0], device="remote"),
        lambda node: node.zeros(2, device="remote:1"),
    ],
    ids=["to", "to(device=)", "cuda", "new_tensor", "zeros"],
)
def test_the_device_name_has_to_be_asked_for(node: Node, use: Callable[[Node], object]) -> None:
    with pytest.raises(DeviceNameError, match=r"no device .*remote\.use_device_name\(\) was not called.* first"):
        use(node)
