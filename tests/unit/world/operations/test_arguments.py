"""What a caller may not hand to an operation: it is told at once, and nothing has been sent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from multiworld.world.operations.arguments import Arguments, check_seconds


@pytest.fixture
def arguments() -> Arguments:
    return Arguments(0, 2, torch.device("cpu"))


def freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            AsyncCollectiveTensor(torch.ones(4)),
            r"tensor is a AsyncCollectiveTensor, which has no memory of its own: .*to_local",
        ),
        (freed(), r"tensor has 4 elements, but its memory was freed"),
        (torch.eye(2).to_sparse(), r"tensor is a torch.sparse_coo tensor"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), r"tensor is a nested tensor"),
        ([1.0], r"tensor must be a tensor, got list"),
    ],
    ids=["one that waits", "freed", "sparse", "nested", "list"],
)
def test_what_has_no_plain_memory_is_refused_both_ways(arguments: Arguments, tensor: Tensor, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        arguments.outgoing(tensor, "tensor")
    with pytest.raises(TypeError, match=message):
        arguments.incoming(tensor, "tensor")


def test_empty_tensors_need_no_memory(arguments: Arguments) -> None:
    empty = torch.empty(0, 3)
    assert arguments.outgoing(empty, "tensor") is empty
    assert arguments.incoming(empty, "tensor") == (empty, None)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(5),
        torch.zeros(3, 1).expand(3, 4),
        torch.zeros(6).as_strided((4, 2), (1, 1)),
        torch.zeros(13).as_strided((4, 2), (2, 6)),
    ],
    ids=["expanded", "expanded rows", "a window over rows", "strides that meet"],
)
def test_nothing_is_received_into_elements_that_share_memory(arguments: Arguments, tensor: Tensor) -> None:
    with pytest.raises(ValueError, match=r"elements of tensor share memory .*\.clone\(\)"):
        arguments.incoming(tensor, "tensor")
    assert arguments.outgoing(tensor, "tensor").is_contiguous(), "to send it is well"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, 4).t(),
        torch.zeros(8)[::2],
        torch.zeros(2, 3, 4)[:, 1],
        torch.zeros(12).as_strided((2, 3), (3, 2)),
        torch.zeros(1).expand(1, 1),
    ],
    ids=["transposed", "every second", "a plane", "strides that interleave", "expanded to one element"],
)
def test_strided_memory_is_received_into(arguments: Arguments, tensor: Tensor) -> None:
    memory, finish = arguments.incoming(tensor, "tensor")
    memory.copy_(torch.arange(memory.numel()).view(memory.shape))
    if finish is not None:
        finish()
    assert tensor.flatten().tolist() == list(range(tensor.numel()))


@pytest.mark.parametrize("seconds", ["3", None, True, [1]])
def test_what_is_no_number_of_seconds_is_a_type_error(seconds: object) -> None:
    with pytest.raises(TypeError, match=r"timeout_s must be a number of seconds, got"):
        check_seconds(seconds, "timeout_s")  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_seconds_are_positive(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"timeout_s must be a positive number of seconds or None, got"):
        check_seconds(seconds, "timeout_s", "of seconds or None")


def test_what_was_made_in_inference_mode_is_filled_outside_of_it(arguments: Arguments) -> None:
    with torch.inference_mode():
        columns = torch.zeros(3, 4).t()
    memory, finish = arguments.incoming(columns, "tensor")
    assert finish is not None
    memory.copy_(torch.ones(4, 3))
    finish()
    assert torch.equal(columns, torch.ones(4, 3))
