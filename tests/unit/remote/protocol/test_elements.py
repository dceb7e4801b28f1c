"""Elements travel in the order of their memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multiworld.remote.protocol.elements import arrived_spec, elements_of, is_dense, tensor_of
from multiworld.remote.protocol.specs import describe

TENSORS = {
    "plain": torch.arange(24.0).view(2, 3, 4),
    "transposed": torch.arange(24.0).view(4, 6).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part, with gaps": torch.arange(24.0).view(4, 6)[:, 1:3],
    "behind an offset": torch.arange(24.0)[5:],
    "expanded": torch.arange(3.0).expand(4, 3),
    "of one element": torch.arange(4.0)[2:3].as_strided((1, 1), (7, 9)),
    "without dimensions": torch.tensor(3.0),
    "empty": torch.empty(0, 3),
    "conjugated": torch.randn(2, 3, dtype=torch.complex64).conj(),
    "negative": torch.randn(2, 3, dtype=torch.complex64).conj().imag,
    "of 12 dimensions": torch.arange(4096.0).view([2] * 12),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_what_arrives_has_the_values_and_the_spec_that_was_foretold(tensor: Tensor) -> None:
    elements, spec = elements_of(tensor)
    arrived = tensor_of(elements.clone(), spec)
    assert torch.equal(arrived, tensor)
    assert describe(arrived) == spec
    assert arrived_spec(describe(tensor)) == spec


@pytest.mark.parametrize("name", ["plain", "transposed", "channels last", "behind an offset", "empty"])
def test_a_dense_tensor_keeps_its_strides_and_is_not_copied(name: str) -> None:
    tensor = TENSORS[name]
    elements, spec = elements_of(tensor)
    assert spec.stride == tensor.stride()
    assert elements.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("name", ["a part, with gaps", "expanded"])
def test_a_tensor_with_gaps_or_elements_that_are_there_twice_arrives_without(name: str) -> None:
    tensor = TENSORS[name]
    assert not is_dense(describe(tensor))
    elements, spec = elements_of(tensor)
    assert elements.numel() == tensor.numel()
    assert spec.stride == torch.empty(tensor.shape).stride()
