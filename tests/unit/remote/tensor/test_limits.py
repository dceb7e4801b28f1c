"""What PyTorch does by the label of a tensor, and what can't be on a node: it works, or the error names the way out."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multiworld.remote import PlaceMismatchError, RemoteTensor, UnsupportedOperationError
from multiworld.remote.master.node import Node

from ..fake_node import FakeNode, values


def test_new_tensor_is_where_the_tensor_is_and_of_its_dtype(node: Node) -> None:
    made = node.ones(2, dtype=torch.float64).new_tensor([[1, 2], [3, 4]], requires_grad=True)
    assert isinstance(made, RemoteTensor)
    assert made.requires_grad
    assert values(made).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert made.dtype == torch.float64
    assert node.ones(1).new_tensor(7, dtype=torch.int64).item() == 7


@pytest.mark.parametrize(
    "draw",
    [
        lambda node, generator: node.randn(3, generator=generator),
        lambda node, generator: node.ones(3).bernoulli_(0.5, generator=generator),
        lambda node, generator: node.ones(3).multinomial(2, generator=generator),
    ],
)
def test_a_generator_of_the_master_draws_nothing_on_a_node(
    node: Node, draw: Callable[[Node, torch.Generator], Tensor]
) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"aten\..* can't draw on a node.*manual_seed"):
        draw(node, torch.Generator())
    assert isinstance(draw(node, torch.default_generator), RemoteTensor)


@pytest.mark.parametrize("target", [(0,), None])
@pytest.mark.parametrize(
    ("one", "other"), [((3, 4, 5), (5, 6)), ((2, 3, 4), (4,)), ((1, 2, 3), (3,)), ((2, 1, 3, 4), (2, 4, 5))]
)
def test_matmul_writes_products_of_more_than_two_dimensions(
    node: Node, one: tuple[int, ...], other: tuple[int, ...], target: tuple[int, ...] | None
) -> None:
    left, right = torch.randn(one), torch.randn(other)
    wanted = left @ right
    out = node.empty(wanted.shape if target is None else target)
    torch.matmul(node.send(left), node.send(right), out=out)
    assert torch.equal(values(out), wanted)


def test_a_copy_of_a_wrong_shape_is_an_error_still(node: Node) -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        node.empty(3, 4).copy_(node.empty(4, 3))


@pytest.mark.parametrize("size", [3, 3000])
@pytest.mark.parametrize(
    "function",
    [torch.copysign, torch.nextafter, lambda one, other: torch.sgn(one) * other],
    ids=["copysign", "nextafter", "sgn"],
)
def test_gradients_that_are_zero_are_on_the_node(
    node: Node, size: int, function: Callable[[Tensor, Tensor], Tensor]
) -> None:
    local = [torch.randn(size, requires_grad=True) for _ in range(2)]
    there = [node.send(each.detach()).requires_grad_() for each in local]
    for leaves in (local, there):
        inner = [torch.tanh(each) for each in leaves]  # its backward has a gradient of zeros as an operand
        (function(*inner).sum() + function(*leaves).sum()).backward()  # type: ignore[no-untyped-call]
    for mine, other in zip(there, local, strict=True):
        assert isinstance(mine.grad, RemoteTensor)
        assert mine.grad is mine.grad
        assert other.grad is not None
        assert torch.equal(values(mine.grad), other.grad)


def test_outside_of_backward_a_large_tensor_of_the_master_does_not_travel(node: Node) -> None:
    with pytest.raises(PlaceMismatchError, match="Send it first"):
        node.ones(3000) + torch.ones(3000)


def test_a_gradient_is_set_and_deleted_as_before(node: Node) -> None:
    leaf = node.ones(2).requires_grad_()
    assert leaf.grad is None
    leaf.grad = node.ones(2)
    assert values(leaf.grad).tolist() == [1.0, 1.0]
    leaf.grad = torch.tensor([0.0, 2.0])  # of the master
    assert isinstance(leaf.grad, RemoteTensor)
    assert values(leaf.grad).tolist() == [0.0, 2.0]
    del leaf.grad
    assert leaf.grad is None


def test_a_sparse_gradient_is_refused_with_the_way_out(node: Node) -> None:
    embedding = node.load(nn.Embedding(10, 3, sparse=True))
    loss = embedding(node.send(torch.tensor([1, 2]))).sum()
    with pytest.raises(UnsupportedOperationError, match=r"_sparse_coo_tensor.*torch.sparse_coo.*sparse=False"):
        loss.backward()


def test_nested_tensors_of_an_encoder_are_refused_with_the_way_out(fake: FakeNode) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    inputs, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    there, mask = fake.node.send(inputs), fake.node.send(padding)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    plain = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    plain.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        wanted = plain(inputs, src_key_padding_mask=padding)
        fake.node.load(encoder)
        fake.node.load(plain)
        with pytest.raises(UnsupportedOperationError, match=r"_nested_tensor_from_mask.*enable_nested_tensor=False"):
            encoder(there, src_key_padding_mask=mask)
        assert torch.equal(values(plain(there, src_key_padding_mask=mask)), wanted)


def test_packed_sequences_are_refused_with_the_way_out(node: Node) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"_pack_padded_sequence.*the padded batch.*mask"):
        nn.utils.rnn.pack_padded_sequence(node.ones(2, 3, 4), torch.tensor([3, 2]), batch_first=True)


@pytest.mark.parametrize(
    "reach",
    [
        lambda there: there.data_ptr(),
        lambda there: there.storage(),
        lambda there: there.share_memory_(),
        lambda there: there.apply_(abs),
        lambda there: np.asarray(there),
        lambda there: np.from_dlpack(there),
        lambda there: torch.utils.dlpack.from_dlpack(there),
        lambda there: nn.ParameterList([there]).share_memory(),
    ],
)
def test_what_reaches_for_the_memory_of_a_tensor_raises(node: Node, reach: Callable[[Tensor], object]) -> None:
    with pytest.raises(
        UnsupportedOperationError, match=r"lives on node 1, and has no memory here. Call fetch\(\) first"
    ):
        reach(node.ones(3))


def test_a_tensor_of_the_master_does_not_become_one_of_a_node(node: Node) -> None:
    weight, there = nn.Parameter(torch.zeros(3)), node.ones(3)
    for target, inference in itertools.product((weight, torch.zeros(3)), (False, True)):
        with (
            torch.inference_mode(inference),
            pytest.raises(UnsupportedOperationError, match=r"can't become one of node 1. .*nodes\[1\].load\(module\)"),
        ):
            target.data = there
    weight.data = torch.ones(3)
    assert weight.tolist() == [1, 1, 1]
    there.data = node.zeros(3)
    assert values(there).tolist() == [0, 0, 0]
