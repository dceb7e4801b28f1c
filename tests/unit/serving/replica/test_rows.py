"""Rows of requests that are executed together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.serving.flow.packets import Item, Kind
from multiworld.serving.replica.rows import concatenate, shape_of, split


def items(*payloads: Payload) -> list[Item]:
    return [Item(Kind.ITEM, bytes([number]) * 16, 1).carry(payload) for number, payload in enumerate(payloads)]


def test_requests_are_of_one_kind_whatever_their_number_of_rows() -> None:
    few, many = shape_of(items(torch.zeros(2, 3))), shape_of(items(torch.zeros(5, 3)))
    assert (few[0], many[0]) == (2, 5)
    assert few[1] == many[1]


@pytest.mark.parametrize(
    "other",
    [torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.int64), [torch.zeros(2, 3)], {"x": torch.zeros(2, 3)}],
    ids=["another width", "another dtype", "a list", "a dictionary"],
)
def test_what_cannot_be_concatenated_is_of_another_kind(other: Payload) -> None:
    assert shape_of(items(torch.zeros(2, 3)))[1] != shape_of(items(other))[1]


@pytest.mark.parametrize(
    "payload",
    [torch.tensor(1.0), torch.zeros(0, 3), [torch.zeros(2, 3), torch.zeros(1, 3)]],
    ids=["a scalar", "no row", "tensors of different rows"],
)
def test_what_has_no_rows_is_of_no_other_requests_kind(payload: Payload) -> None:
    (item,) = items(payload)
    assert shape_of([item]) == (1, item.id)


@pytest.mark.parametrize("as_payload", [lambda x: x, lambda x: {"x": x}, lambda x: [x, x + 1]])
def test_a_batch_is_told_apart_as_it_was_put_together(as_payload: Callable[[Tensor], Payload]) -> None:
    parts = [torch.randn(2, 3), torch.randn(1, 3), torch.randn(4, 3)]
    batch = concatenate([as_payload(part) for part in parts])
    for result, part in zip(split(batch, [2, 1, 4], 3), parts, strict=True):
        torch.testing.assert_close(result, as_payload(part))


def test_one_request_keeps_its_result_whatever_shape_it_has() -> None:
    result = torch.tensor(1.0)
    assert split(result, [], 1) == [result]


@pytest.mark.parametrize("result", [torch.zeros(6), torch.tensor(1.0)])
def test_a_batchs_result_without_all_rows_is_refused_with_the_arithmetic(result: Tensor) -> None:
    with pytest.raises(ValueError, match="3 requests with 7 rows") as caught:
        split(result, [2, 1, 4], 3)
    assert "expected 7 in dimension 0" in str(caught.value)
