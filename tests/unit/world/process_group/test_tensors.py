"""How the tensors that c10d hands to a group are cut into parts, one for each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from multiworld.errors import InvalidTypeError, MissingTensorError, UnsupportedTensorError
from multiworld.world.process_group.tensors import alike, only, only_list, overlap, pairs, parts_of, split


@pytest.mark.parametrize("shape", [(6, 2), (3, 2, 2), (12,)])
def test_parts_are_views_of_flat_stacked_and_concatenated_tensors(shape: tuple[int, ...]) -> None:
    whole = torch.arange(12.0).view(shape)
    parts = parts_of(whole, 3, torch.Size([2, 2]), "output")
    assert [part.tolist() for part in parts] == torch.arange(12.0).view(3, 2, 2).tolist()
    parts[1].zero_()
    assert int((whole == 0).sum()) == 5


@pytest.mark.parametrize("shape", [(6, 2), (3, 2, 2)])
def test_parts_of_strided_tensors_are_views_too(shape: tuple[int, ...]) -> None:
    strided = torch.zeros(*shape, 2)[..., 0]
    assert not strided.is_contiguous()
    parts_of(strided, 3, torch.Size([2, 2]), "output")[2].fill_(1)
    assert strided.flatten().tolist() == [0.0] * 8 + [1.0] * 4


def test_parts_do_not_require_gradients_and_may_be_empty_or_scalars() -> None:
    assert not parts_of(torch.zeros(4, requires_grad=True), 2, torch.Size([2]), "output")[0].requires_grad
    assert [part.shape for part in parts_of(torch.empty(0, 3), 2, torch.Size([0, 3]), "output")] == [(0, 3)] * 2
    assert [part.item() for part in parts_of(torch.arange(2), 2, torch.Size([]), "output")] == [0, 1]


def test_tensors_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(ValueError, match=r"output holds 5 elements, but must hold 2 ranks x 2 = 4"):
        parts_of(torch.empty(5), 2, torch.Size([2]), "output")
    with pytest.raises(ValueError, match="not contiguous"):
        parts_of(torch.empty(4, 2)[:, 0], 2, torch.Size([2, 1]), "output")
    with pytest.raises(ValueError, match="2 numbers that add up to 4"):
        split(torch.empty(4), [1, 1], 2, "input")
    with pytest.raises(ValueError, match="divide by 3 ranks"):
        split(torch.empty(4), [], 3, "input")
    with pytest.raises(ValueError, match="divide by 3 ranks"):
        split(torch.empty(()), [], 3, "input")


def test_splits_are_along_the_first_dimension() -> None:
    whole = torch.arange(8).view(4, 2)
    assert [part.tolist() for part in split(whole, [3, 0, 1], 3, "input")] == [[[0, 1], [2, 3], [4, 5]], [], [[6, 7]]]
    assert [len(part) for part in split(whole, [], 2, "input")] == [2, 2]


def test_lists_hold_one_entry() -> None:
    tensor = torch.ones(1)
    assert only([tensor]) is tensor
    assert only(tensor) is tensor
    assert only_list([[tensor, tensor]], "outputs") == only_list([tensor, tensor], "outputs") == [tensor, tensor]
    for call in (lambda: only([tensor, tensor]), lambda: only_list([[tensor], [tensor]], "outputs")):
        with pytest.raises(ValueError, match="expected one"):
            call()
    for empty in (lambda: only([]), lambda: only_list([], "outputs"), lambda: only_list([[]], "outputs")):
        with pytest.raises(MissingTensorError, match="is empty"):
            empty()
    with pytest.raises(InvalidTypeError, match=r"tensors\[0\] must be a tensor, got 1"):
        only([1])


def test_coalesced_tensors_are_alike() -> None:
    assert len(alike([torch.ones(1), torch.ones(2)])) == 2
    with pytest.raises(ValueError, match=r"tensors\[1\] is torch.int64 on cpu, but tensors\[0\] is torch.float32"):
        alike([torch.ones(1), torch.ones(1, dtype=torch.int64)])
    with pytest.raises(ValueError, match="2 outputs, but 1 inputs"):
        pairs([torch.ones(1)] * 2, [torch.ones(1)])


def test_tensors_that_may_share_memory_are_found() -> None:
    whole = torch.ones(4, 4)
    assert overlap([whole, whole])
    assert overlap([whole[:3], whole[2:]])
    assert overlap([whole[:, :1], whole[:, 1:]]), "they interleave"
    assert not overlap([whole[:2], whole[2:], torch.ones(4), torch.empty(0), torch.empty(0)])


def test_what_a_functional_collective_returned_stands_for_its_result() -> None:
    result = torch.ones(4)
    pending = AsyncCollectiveTensor(result)
    assert only([pending]).data_ptr() == only(pending).data_ptr() == result.data_ptr()
    assert [tensor.data_ptr() for tensor in only_list([[pending, result]], "outputs")] == [result.data_ptr()] * 2
    assert [part.data_ptr() for part in split(pending, [], 2, "input")] == [result.data_ptr(), result.data_ptr() + 8]
    assert parts_of(pending, 2, torch.Size([2]), "input")[0].data_ptr() == result.data_ptr()


@pytest.mark.filterwarnings("ignore:.*(beta|prototype)")
@pytest.mark.parametrize("kind", ["sparse", "csr", "nested", "mkldnn"])
def test_tensors_that_are_not_dense_are_refused_by_name(kind: str) -> None:
    kinds: dict[str, Any] = {
        "sparse": lambda: torch.eye(4).to_sparse(),
        "csr": lambda: torch.eye(4).to_sparse_csr(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "mkldnn": lambda: torch.eye(4).to_mkldnn(),
    }
    tensor: torch.Tensor = kinds[kind]()
    calls: list[Callable[[], object]] = [
        lambda: alike([torch.ones(1), tensor]),
        lambda: alike([tensor, tensor]),
        lambda: parts_of(tensor, 2, torch.Size([2, 4]), "tensors[1]"),
        lambda: split(tensor, [], 2, "tensors[1]"),
    ]
    for call in calls:
        with pytest.raises(UnsupportedTensorError, match=r"tensors\[.\] is a (nested|torch\.\w+) tensor"):
            call()
