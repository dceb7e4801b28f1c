"""Operators for which PyTorch goes another way with subclasses of tensors: here they go the way of plain ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from multiworld.remote import RemoteTensor, UnsupportedOperationError
from multiworld.remote.master.node import Node
from multiworld.remote.session.sync_points import no_sync
from multiworld.remote.tensor.wrapping import KEY

from ..fake_node import values

BATCHES = [((3, 2, 5), (1, 5, 4)), ((1, 2, 5), (3, 5, 4)), ((0, 2, 5), (1, 5, 4)), ((2, 3, 2, 5), (1, 5, 4))]
PRODUCTS: list[Callable[[Tensor], Tensor]] = [
    torch.prod,
    lambda x: x.prod(1),
    lambda x: x.prod(-2, keepdim=True),
    lambda x: x.prod(0, dtype=torch.float64),
    lambda x: x[0, 1].prod(),
    lambda x: x[:0].prod(),
    lambda x: torch.prod(x[:0], 0),
]


def drawn(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Return the gradients of those inputs that can have one, which all must have one."""
    leaves = [each.detach().requires_grad_(each.is_floating_point()) for each in inputs]
    (function(*leaves) * 0.7).sum().backward()  # type: ignore[no-untyped-call]
    found = [each.grad for each in leaves if each.requires_grad]
    return [each for each in found if each is not None]


def assert_same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(values(one), other)


@pytest.mark.parametrize(("one", "other"), BATCHES)
@pytest.mark.parametrize("needs_gradient", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_batches_call_the_same_kernels(
    node: Node, one: tuple[int, ...], other: tuple[int, ...], needs_gradient: tuple[bool, bool]
) -> None:
    def product(*operands: Tensor) -> Tensor:
        needing = [each.requires_grad_(needs) for each, needs in zip(operands, needs_gradient, strict=True)]
        return torch.matmul(*needing)

    here = product(drawn(*one), drawn(*other))
    there = product(node.send(drawn(*one)), node.send(drawn(*other)))
    assert torch.equal(values(there), here)
    assert kernels_of(there) == kernels_of(here)


def kernels_of(result: Tensor) -> set[str]:
    """Return the matrix products that autograd recorded."""
    nodes, found = [result.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None:
            found |= {node.name()} & {"MmBackward0", "BmmBackward0"}
            nodes += [each for each, _ in node.next_functions]
    return found


def test_a_batch_times_a_batch_of_one_into_out_and_with_autocast(node: Node) -> None:
    one, other = drawn(3, 2, 5), drawn(1, 5, 4)
    out = node.empty(0)
    torch.matmul(node.send(one), node.send(other), out=out)
    assert torch.equal(values(out), torch.matmul(one, other, out=torch.empty(0)))
    with torch.autocast("cpu"):
        assert_same([node.send(one) @ node.send(other)], [one @ other])


@pytest.mark.parametrize("others", [(5, 4), (5,), (3, 5, 4)])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_operator_of_products_does_what_the_function_does(
    node: Node, others: tuple[int, ...], autocast: bool
) -> None:
    one, other = drawn(2, 5), drawn(*others)
    there = node.send(one).requires_grad_(), node.send(other).requires_grad_()
    here = one.requires_grad_(), other.requires_grad_()
    with torch.autocast("cpu", enabled=autocast):
        assert_same([there[0] @ there[1]], [here[0] @ here[1]])
        assert kernels_of(there[0] @ there[1]) == kernels_of(here[0] @ here[1])
    assert_same(gradients(operator.matmul, *there), gradients(operator.matmul, *here))


def test_the_operator_of_products_takes_what_a_transform_makes_of_matrices(node: Node) -> None:
    batch = drawn(3, 4, 4)
    product = torch.func.vmap(lambda matrix: matrix @ matrix)
    assert_same([product(node.send(batch))], [product(batch)])


def test_other_tensors_never_come_here(node: Node) -> None:
    """Not even in operators that have a kernel for ours: their dispatch keys are what they were."""
    assert torch._C._dispatch_keys(node.ones(1)).has(KEY)
    assert torch._C._dispatch_keys(node.ones(1).requires_grad_().detach()).has(KEY)
    assert not torch._C._dispatch_keys(torch.ones(1)).has(KEY)


@pytest.mark.parametrize("num_zeros", [0, 1, 2])
@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_of_products_are_those_of_plain_tensors(
    node: Node, product: Callable[[Tensor], Tensor], num_zeros: int
) -> None:
    factors = drawn(4, 5)
    factors.view(-1)[: 6 * num_zeros : 6] = 0
    there = node.send(factors)
    with no_sync():
        found = gradients(product, there)
    assert_same(found, gradients(product, factors))


def test_products_have_second_derivatives(node: Node) -> None:
    def second(x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(x.prod(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    factors = drawn(4)
    found = second(node.send(factors).requires_grad_())
    torch.testing.assert_close(values(found), second(factors.clone().requires_grad_()))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp calls it
def test_transforms_of_products_give_what_they_give_here(node: Node) -> None:
    factors = drawn(3, 4)
    there = node.send(factors)
    assert_same([torch.func.grad(torch.prod)(there)], [torch.func.grad(torch.prod)(factors)])
    found = torch.func.jvp(torch.prod, (there,), (there,))
    assert_same(found, torch.func.jvp(torch.prod, (factors,), (factors,)))
    rows = torch.func.vmap(torch.func.grad(torch.prod))
    assert_same([rows(there)], [rows(factors)])


def fill(target: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return target.masked_fill(mask, value)


def test_the_gradient_of_a_value_that_fills_is_that_of_plain_tensors(node: Node) -> None:
    operands = [drawn(50, 7), drawn(50, 7) > -0.3, torch.tensor(1.5)]
    there = [node.send(each) for each in operands]
    with no_sync():
        found = gradients(fill, *there)
    assert len(found) == 2
    assert_same(found, gradients(fill, *operands))
    assert_same(gradients(fill, there[0][0], *there[1:]), gradients(fill, operands[0][0], *operands[1:]))


def test_a_value_that_fills_has_second_derivatives(node: Node) -> None:
    def second(value: Tensor, mask: Tensor) -> Tensor:
        filled = mask.float().masked_fill(mask, value)
        (first,) = torch.autograd.grad((filled**3).sum(), value, create_graph=True)
        return torch.autograd.grad(first, value)[0]

    mask = drawn(20) > 0
    found = second(node.send(torch.tensor(1.5)).requires_grad_(), node.send(mask))
    torch.testing.assert_close(values(found), second(torch.tensor(1.5).requires_grad_(), mask))


@pytest.mark.parametrize("size", [(0, 3), (2, 0, 3), (2, 3, 4)])
def test_ranks_of_matrices_are_on_the_node(node: Node, size: tuple[int, ...]) -> None:
    for options in ({}, {"tol": 0.5}, {"atol": 0.1, "rtol": 0.1}):
        found = torch.linalg.matrix_rank(node.send(drawn(*size)), **options)
        assert_same([found], [torch.linalg.matrix_rank(drawn(*size), **options)])
    found = torch.linalg.matrix_rank(node.send(drawn(*size)), tol=node.send(torch.tensor(0.5)))
    assert_same([found], [torch.linalg.matrix_rank(drawn(*size), tol=torch.tensor(0.5))])


@pytest.mark.parametrize("places", [torch.tensor([1, 3]), torch.tensor(2)])
def test_a_tensor_of_a_node_says_where_to_split(node: Node, places: Tensor) -> None:
    whole = drawn(4, 2)
    assert_same(torch.tensor_split(node.send(whole), node.send(places)), torch.tensor_split(whole, places))
    assert_same(torch.tensor_split(node.send(whole.T), node.send(places), 1), torch.tensor_split(whole.T, places, 1))
    assert not isinstance(torch.tensor_split(whole, node.send(places))[0], RemoteTensor)


@pytest.mark.parametrize("size", [(3, 3), (2, 3, 5), (2, 5, 3), (0, 3), (2, 0, 3), (4, 1, 3)])
def test_singular_vectors_lie_in_memory_as_here(node: Node, size: tuple[int, ...]) -> None:
    """Kernels sum in an order that depends on strides: others would give gradients with other bits."""
    there = node.send(drawn(*size))
    for full_matrices in (True, False):
        found, wanted = torch.linalg.svd(there, full_matrices), torch.linalg.svd(drawn(*size), full_matrices)
        assert [each.stride() for each in found] == [each.stride() for each in wanted]
        assert_same(found, wanted)


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("function", [torch.linalg.svdvals, torch.linalg.eigvals, torch.linalg.eigvalsh])
def test_singular_values_and_eigenvalues_come_of_the_same_kernels(
    node: Node, function: Callable[[Tensor], Tensor], needs_gradient: bool
) -> None:
    for number in range(3, 8):
        there = node.send(drawn(2, number, number)).requires_grad_(needs_gradient)
        assert_same([function(there)], [function(drawn(2, number, number).requires_grad_(needs_gradient))])


def test_eigenvectors_lie_in_memory_as_here(node: Node) -> None:
    found, wanted = torch.linalg.eig(node.send(drawn(2, 5, 5))), torch.linalg.eig(drawn(2, 5, 5))
    assert [each.stride() for each in found] == [each.stride() for each in wanted]
    assert_same(found, wanted)


@pytest.mark.parametrize("convert", [Tensor.to_sparse, Tensor.to_sparse_csr, lambda x: x.to_sparse(1)])
def test_a_sparse_result_names_the_way_out(node: Node, convert: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"aten\._to_sparse.*fetch\(\) the tensor"):
        convert(node.ones(2, 3))
