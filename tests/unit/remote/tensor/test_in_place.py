"""A write that does not fit raises at once, as with plain tensors, and loses no tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from multiworld.remote.master.node import Node

from ..fake_node import values

Make = Callable[[], Tensor]
ROWS = torch.tensor([0, 1])

WRONG: dict[str, tuple[Make, Callable[[Any], Any], str]] = {
    "a fraction into whole numbers": (lambda: torch.ones(3, dtype=torch.int64), lambda t: t.mul_(0.5), "can't be cast"),
    "complex into real": (lambda: torch.ones(3), lambda t: t.add_(t * 1j), "can't be cast"),
    "whole numbers into bool": (lambda: torch.ones(3) > 0, lambda t: t.add_(2), "can't be cast"),
    "a larger operand": (lambda: torch.ones(1), lambda t: t.eq_(t.expand(2, 1)), "doesn't match the broadcast shape"),
    "a larger third operand": (lambda: torch.ones(1), lambda t: t.addcmul_(t, t.expand(3)), "broadcast shape"),
    "an expanded tensor": (lambda: torch.ones(3), lambda t: t.expand(2, 3).add_(1), "single memory location"),
    "an expanded copy": (lambda: torch.ones(3), lambda t: t.expand(2, 3).copy_(t * 2), "single memory location"),
    "values for indices": (lambda: torch.ones(3), lambda t: t.__setitem__(ROWS, t * 2), "shape mismatch: value tensor"),
    "values of another dtype": (lambda: torch.ones(3), lambda t: t.index_put_((ROWS,), t[:2].double()), "dtypes match"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_write_that_does_not_fit_raises_as_with_plain_tensors(case: str, node: Node) -> None:
    make, write, text = WRONG[case]
    local = make()
    with pytest.raises(RuntimeError, match=text):
        write(local)
    there = node.send(local)
    with pytest.raises(RuntimeError, match=text):
        write(there)
    assert torch.equal(values(there), local)


RIGHT: dict[str, tuple[Make, Callable[[Any], Any]]] = {
    "a whole number into fractions": (lambda: torch.ones(3), lambda t: t.mul_(2)),
    "a wider dtype": (lambda: torch.ones(3), lambda t: t.add_(t.double())),
    "a comparison": (lambda: torch.ones(3), lambda t: t.gt_(0)),
    "a smaller operand": (lambda: torch.ones(2, 3), lambda t: t.mul_(t[0] * 2)),
    "a fill of an expanded tensor": (lambda: torch.ones(3), lambda t: t.expand(2, 3).fill_(4)),
    "an expanded tensor into itself": (lambda: torch.ones(3), lambda t: (view := t.expand(2, 3)).copy_(view)),
    "an empty expanded tensor": (lambda: torch.ones(0), lambda t: t.expand(2, 0).add_(1)),
    "values for indices": (lambda: torch.ones(3), lambda t: t.__setitem__(ROWS, t[:1] * 2)),
    "values for a mask": (lambda: torch.ones(3), lambda t: t.__setitem__(torch.ones(3) > 0, t * 2)),
    "a value of another dtype for a mask": (
        lambda: torch.ones(3),
        lambda t: t.__setitem__(torch.ones(3) > 0, t.double().sum()),
    ),
    "values for indices of several dimensions": (
        lambda: torch.ones(2, 2, 3),
        lambda t: t.__setitem__((slice(None), ROWS), t[0] * 2),
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_write_that_fits_has_the_values_of_plain_tensors(case: str, node: Node) -> None:
    make, write = RIGHT[case]
    local = make()
    there = node.send(local)
    write(local)
    write(there)
    assert torch.equal(values(there), local)
