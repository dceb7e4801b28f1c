"""What a replay would do wrong without a word is refused while it is captured, with the operation and its line."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from multiworld.remote import CaptureError
from multiworld.remote.capturing.capture import capture
from multiworld.remote.master.node import Node
from tests.unit.remote.fake_node import FakeNode, remote_of, values

Block = Callable[[Node, Tensor], object]
SYNCS: dict[str, Block] = {
    "item": lambda node, x: x.sum().item(),
    "aten.nonzero.default": lambda node, x: x.nonzero(),
    "repr": lambda node, x: repr(x),
    "fetch": lambda node, x: remote_of(x).fetch(),
    "tolist": lambda node, x: x.tolist(),
    "synchronize": lambda node, x: node.synchronize(),
    "aten.index.Tensor": lambda node, x: x[x > 1],
}


@pytest.mark.parametrize("operation", SYNCS)
def test_what_waits_is_refused(node: Node, operation: str) -> None:
    x = node.send(torch.arange(4.0))
    with pytest.raises(CaptureError, match="it waits for a value") as caught, capture(x):
        SYNCS[operation](node, x)
    assert caught.value.operation == operation
    assert "test_refusals.py" in caught.value.line
    assert values(x + 1).tolist() == [1, 2, 3, 4]  # behind the block all is as before


BEFORE = torch.ones(4)
LOCAL: dict[str, Block] = {
    "travels with it": lambda node, x: x + BEFORE,
    "is sent": lambda node, x: node.send(BEFORE),
    "computes with a tensor of the master": lambda node, x: BEFORE.add_(1),
    "a tensor of the master": lambda node, x: x * (BEFORE + 1),
    "a tensor of the master (shape": lambda node, x: x * torch.rand(4),
}


@pytest.mark.parametrize("reason", LOCAL)
def test_tensors_of_the_master_are_refused(node: Node, reason: str) -> None:
    x = node.send(torch.arange(4.0))
    with pytest.raises(CaptureError) as caught, capture(x):
        LOCAL[reason](node, x)
    assert reason in str(caught.value)
    assert BEFORE.tolist() == [1, 1, 1, 1]


def test_a_large_tensor_that_is_sent_is_refused(node: Node) -> None:
    x, large = node.send(torch.ones(2)), torch.zeros(100_000)
    with pytest.raises(CaptureError, match="is sent"), capture(x):
        node.send(large)


def test_a_seed_is_refused(node: Node) -> None:
    with pytest.raises(CaptureError, match="Seed outside of the block"), capture(node=node):
        node.manual_seed(3)


def test_two_nodes_are_refused(node: Node) -> None:
    with FakeNode(2) as other:
        x, y = node.send(torch.ones(2)), other.node.send(torch.ones(2))
        with pytest.raises(CaptureError, match="on node 2, and the step belongs to node 1"), capture(x):
            y.mul_(2)
        with pytest.raises(ValueError, match="is on node 2, and the step belongs to node 1"):
            capture(x, y)


def test_another_thread_is_refused(node: Node) -> None:
    x = node.send(torch.ones(2))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            x.mul_(2)
        except CaptureError as error:
            errors.append(error)

    with capture(x):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "another thread uses node 1" in str(errors[0])
    assert values(x).tolist() == [1, 1]


def test_a_capture_inside_of_another_is_refused(node: Node) -> None:
    x = node.send(torch.ones(2))
    with capture(x) as first:
        first.returns(x + 1)
    with pytest.raises(CaptureError, match="captured inside of another one"), capture(x), capture(x):
        pass
    with pytest.raises(CaptureError, match="replayed inside of another one"), capture(x):
        first(x)


def test_the_first_step_of_an_optimizer_is_refused(node: Node) -> None:
    weight = nn.Parameter(node.send(torch.ones(2)))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(CaptureError, match="Call step") as caught, capture(node=node):
        optimizer.step()
    assert caught.value.operation == "SGD.step"


def test_an_optimizer_that_counts_on_the_master_is_refused(node: Node) -> None:
    weight = nn.Parameter(node.send(torch.ones(2)))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    with pytest.raises(CaptureError, match="fused=True"), capture(node=node):
        optimizer.step()


def test_gradients_that_are_added_to_and_given_up_are_refused(node: Node) -> None:
    weight = nn.Parameter(node.send(torch.ones(2)))
    weight.sum().backward()  # type: ignore[no-untyped-call]

    def add_and_give_up() -> None:
        with capture(node=node):
            weight.sum().backward()  # type: ignore[no-untyped-call]
            weight.grad = None

    with pytest.raises(CaptureError, match="zero_grad") as caught:
        add_and_give_up()
    assert caught.value.operation == "aten.add_.Tensor"


def test_other_inputs_are_refused_with_both_specs(node: Node) -> None:
    x = node.send(torch.ones(2, 3))
    with capture(x) as step:
        step.returns(x + 1)
    with pytest.raises(ValueError, match=r"shape \(3, 2\).*captured with.*shape \(2, 3\)"):
        step(node.send(torch.ones(3, 2)))
    with pytest.raises(ValueError, match="float64"):
        step(torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match="with 1 inputs, and 2 are given"):
        step(x, x)
    with pytest.raises(TypeError, match="has to be a tensor, not int"):
        step(3)  # type: ignore[arg-type]


def test_inputs_of_a_capture_are_checked(node: Node) -> None:
    x = node.send(torch.ones(2))
    with pytest.raises(TypeError, match="not Tensor: send it first"):
        capture(torch.ones(2))
    with pytest.raises(ValueError, match="there twice"):
        capture(x, x)
    with pytest.raises(ValueError, match="node=nodes"):
        capture()
    with capture(x) as step, pytest.raises(TypeError, match="tensors of node 1 only"):
        step.returns(torch.ones(2))
    with pytest.raises(RuntimeError, match="belongs into the block"):
        step.scalar("lr", 0.1)


def test_a_view_of_an_input_from_before_the_block_is_refused(node: Node) -> None:
    x = node.send(torch.ones(4))
    part = x[1:]
    with pytest.raises(CaptureError, match="of an input that was made before the block"), capture(x):
        part.add_(1)


def test_a_shape_that_changes_is_refused(node: Node) -> None:
    x = node.send(torch.ones(2, 3))
    with pytest.raises(CaptureError, match="changes the shape"), capture(node=node):
        x.t_()


def test_a_parameter_that_was_replaced_is_refused(node: Node) -> None:
    weight = nn.Parameter(node.send(torch.ones(2)))
    with capture(node=node) as step:
        step.returns(weight.detach() * 2)
    weight.data = node.send(torch.zeros(2))
    with pytest.raises(CaptureError, match="was replaced"):
        step()


def test_a_block_that_failed_leaves_no_step(node: Node) -> None:
    x = node.send(torch.ones(2))
    with pytest.raises(KeyError), capture(x) as step:
        raise KeyError("of the user")
    with pytest.raises(CaptureError, match="its block failed"):
        step(x)
    assert values(x + 1).tolist() == [2, 2]


OF_SCALARS: dict[str, Callable[[float, Tensor], object]] = {
    "bool": lambda lr, x: bool(lr),
    "compare": lambda lr, x: lr < 1,
    "equal": lambda lr, x: lr == 0.1,
    "int": lambda lr, x: int(lr),
    "float": lambda lr, x: float(lr),
    "round": lambda lr, x: round(lr),
    "sqrt": lambda lr, x: x * math.sqrt(lr),
    "fabs": lambda lr, x: x * math.fabs(lr),
    "tensor": lambda lr, x: x * torch.tensor(lr),
    "full": lambda lr, x: x * torch.full((4,), lr),
    "power": lambda lr, x: (x**lr).sum().backward(),  # type: ignore[no-untyped-call]
    "list": lambda lr, x: x * torch.tensor([1.0, lr, 1.0, 1.0]),
}


@pytest.mark.parametrize("use", OF_SCALARS)
def test_scalars_that_would_be_fixed_are_refused(node: Node, use: str) -> None:
    x = node.send(torch.arange(4.0)).requires_grad_()
    with pytest.raises(CaptureError) as caught, capture(x) as step:
        OF_SCALARS[use](step.scalar("lr", 0.1), x)
    assert "test_refusals.py" in caught.value.line
