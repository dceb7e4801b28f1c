"""NumPy's operators with a remote tensor: they run on the node, or say what to do."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from multiworld.remote import PlaceMismatchError, UnsupportedOperationError
from multiworld.remote.master.node import Node

from ..fake_node import values

ARRAY = np.array([3.0, 2.0, 5.0])
THERE = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.floordiv,
        operator.mod,
        operator.pow,
        operator.matmul,
        operator.eq,
        operator.ne,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
    ],
)
def test_an_array_on_either_side_is_a_small_tensor(node: Node, function: Callable[[Any, Any], Any]) -> None:
    here, there = torch.from_numpy(ARRAY), node.send(THERE)
    assert torch.equal(values(function(ARRAY, there)), function(here, THERE))
    assert torch.equal(values(function(there, ARRAY)), function(THERE, here))


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor])
def test_bits_of_whole_numbers(node: Node, function: Callable[[Any, Any], Any]) -> None:
    array, tensor = np.array([5, 6]), torch.tensor([3, 12])
    assert torch.equal(values(function(array, node.send(tensor))), function(torch.from_numpy(array), tensor))


def test_a_number_of_numpy_is_a_number(node: Node) -> None:
    there = node.send(torch.tensor([1.0, 2.0]))
    for made, expected in ((np.float64(2) * there, [2, 4]), (there - np.float32(1), [0, 1]), (2**there, [2, 4])):
        assert made.dtype is torch.float32
        assert values(made).tolist() == expected


def test_arrays_that_pytorch_does_not_take_as_they_are(node: Node) -> None:
    fixed = ARRAY.copy()
    fixed.flags.writeable = False
    for array in (ARRAY[::-1], fixed):
        made: Any = array + node.send(THERE)
        assert torch.equal(values(made), torch.from_numpy(array.copy()) + THERE)


def test_a_large_array_has_to_be_sent(node: Node) -> None:
    with pytest.raises(PlaceMismatchError, match=r"Send it first: nodes\[1\]\.send\(tensor\)"):
        np.ones(3000) + node.ones(3000)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("sin", np.sin),
        ("add", lambda there: np.ones(3).__iadd__(there)),
        ("add", lambda there: np.add.outer(np.ones(3), there)),
        ("arctan2", lambda there: np.arctan2(np.ones(3), there)),
    ],
)
def test_other_functions_say_what_to_do(node: Node, name: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(UnsupportedOperationError, match=rf"numpy\.{name}: .* node 1.* Call PyTorch's function"):
        call(node.send(THERE))
