"""Bytes that ``torch.load`` takes, without ``torch.save`` for each of them."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from multiworld.training.checkpoint.packing import Packer, is_plain, pack


def loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


TENSORS = [
    torch.randn(3, 5),
    torch.tensor(2.5, dtype=torch.float64),
    torch.arange(7),
    torch.tensor([True, False, True]),
    torch.randn(9).to(torch.bfloat16),
    torch.randn(2, 2, dtype=torch.complex64),
    torch.randn(1000, 3).to(torch.float16),
    torch.empty(0, 4),
]


@pytest.mark.usefixtures("no_checksums")
@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}")
def test_packed_tensors_are_what_torch_save_makes_of_them_byte_by_byte(tensor: torch.Tensor) -> None:
    packer = Packer()
    others = [tensor, torch.zeros_like(tensor), torch.ones_like(tensor)]
    for each in others:
        packed = packer.tensor(each)
        assert packed == pack(each)
        assert torch.equal(loaded(packed), each)
        assert loaded(packed).dtype == each.dtype


def test_with_checksums_in_the_archive_each_tensor_is_saved_anew() -> None:
    packer = Packer()
    for tensor in (torch.ones(4), torch.zeros(4)):
        assert packer.tensor(tensor) == pack(tensor)


def test_values_that_are_equal_and_not_the_same_keep_their_own_bytes() -> None:
    packer = Packer()
    values: list[Any] = [0.0, -0.0, 0, False, None, "", (), [], (1, True), (1.0, 1), [1, 1]]
    back = [loaded(packer.value(value)) for value in values * 2]
    assert [repr(value) for value in back] == [repr(value) for value in values * 2]


def test_a_structure_is_packed_again_only_when_it_changes() -> None:
    packer = Packer()
    first = packer.structure(("dict", [("a", ("leaf", "a"))]))
    assert packer.structure(("dict", [("a", ("leaf", "a"))])) is first
    assert loaded(packer.structure(("dict", []))) == ("dict", [])


def test_plain_values_are_pythons_own() -> None:
    class Text(str): ...

    assert is_plain([1, "a", None])
    assert not any(map(is_plain, [Text("a"), [Text("a")], {"a": 1}, [[1]], torch.ones(1)]))
