"""A state is taken apart into tensors and the rest, and is whole again afterwards."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multiworld.training.recovery.state_parts import (
    bytes_of,
    check_parts,
    pack,
    put_together,
    share_out,
    take_apart,
    tensor_of,
    unpack,
)


def there_and_back(state: Any) -> Any:
    tensors, rest = take_apart(state)
    copies = [tensor_of(bytes_of(each).clone(), each.dtype, each.shape, None) for each in tensors]
    return put_together(unpack(pack(rest)), copies)


def test_a_nested_state_comes_back() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    state = {"step": 3, "parts": {"model": {"w": weight}, "list": [weight[0], (1, "x", None)]}, 5: True}
    again = there_and_back(state)
    assert torch.equal(again["parts"]["model"]["w"], weight)
    assert torch.equal(again["parts"]["list"][0], weight[0])
    assert again["parts"]["list"][1] == (1, "x", None)
    assert (again["step"], again[5]) == (3, True)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5),
        torch.zeros(0),
        torch.zeros(3, 0, 2),
        torch.arange(12).reshape(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(3).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(2, dtype=torch.complex64),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.ones(1).expand(4),
    ],
)
def test_any_tensor_comes_back_with_the_same_bits(tensor: torch.Tensor) -> None:
    again = there_and_back([tensor])[0]
    assert again.dtype == tensor.dtype
    assert again.shape == tensor.shape
    assert torch.equal(again, tensor)


def test_a_tensor_that_occurs_twice_is_sent_once_and_is_one_afterwards() -> None:
    shared = torch.ones(4)
    tensors, _ = take_apart({"one": shared, "other": [shared]})
    assert len(tensors) == 1
    again = there_and_back({"one": shared, "other": [shared]})
    assert again["one"] is again["other"][0]


def test_what_looks_like_a_mark_stays_what_it_is() -> None:
    state = {"w": torch.ones(2), "text": ("multiworld tensor", "x")}
    assert there_and_back(state)["text"] == ("multiworld tensor", "x")


class Evil:
    def __reduce__(self) -> Any:
        return print, ("code ran",)


def test_what_could_run_code_is_not_read() -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpack(pack({"evil": Evil()}))


def test_a_part_whose_state_cannot_be_sent_is_named_at_the_start() -> None:
    check_parts({"tracked.good": {"seen": 3, "mean": torch.ones(2), "names": ["a"]}})
    with pytest.raises(TypeError, match=r"tracked\.bad: its state_dict\(\) holds what newcomers cannot be sent"):
        check_parts({"tracked.good": {}, "tracked.bad": {"evil": Evil()}})


@given(sizes=st.lists(st.integers(0, 1000), max_size=12), num_sources=st.integers(1, 9))
def test_shares_hold_each_byte_once_and_are_about_equal(sizes: list[int], num_sources: int) -> None:
    shares = share_out(sizes, num_sources)
    assert len(shares) == num_sources
    covered = sorted((part.index, byte) for share in shares for part in share for byte in range(part.begin, part.end))
    assert covered == [(index, byte) for index, size in enumerate(sizes) for byte in range(size)]
    counts = [sum(part.end - part.begin for part in share) for share in shares]
    assert max(counts) <= -(-sum(sizes) // num_sources) + 1
