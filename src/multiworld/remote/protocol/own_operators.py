"""Operators of our own, which nodes have beside PyTorch's: gradients that depend on data, without a wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

NAMESPACE: Final = "multiworld_remote"
_library: Final = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]  # lasts as long as the kernels
_ANYWHERE: Final = "CompositeExplicitAutograd"


def prod_backward(
    grad: Tensor, self: Tensor, dim: Sequence[int], keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the gradient of ``self`` by PyTorch's own formula, which depends on how many elements are zero.

    ``dim``: the one that was reduced; empty: all were.
    """
    with torch.enable_grad():
        factors = self.detach().requires_grad_()
        if dim:
            product = torch.prod(factors, dim[0], keepdim, dtype=dtype)
        else:
            product = torch.prod(factors, dtype=dtype)
        (found,) = torch.autograd.grad(product, factors, grad)
    return found.clone() if found._is_view() or found is grad else found


def masked_sum(grad: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of the elements where ``mask`` is true: the gradient of what ``masked_fill`` put there."""
    return grad.masked_select(mask).sum()


def _define(schema: str, function: Any, foresee: Any) -> None:
    name = _library.define(schema)  # type: ignore[no-untyped-call]
    _library.impl(name, function, _ANYWHERE)  # type: ignore[no-untyped-call]
    _library.impl(name, foresee, "Meta")  # type: ignore[no-untyped-call]


_define(
    "prod_backward(Tensor grad, Tensor self, int[] dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    prod_backward,
    lambda grad, self, dim, keepdim=False, *, dtype=None: torch.empty_like(self),
)
_define("masked_sum(Tensor grad, Tensor mask) -> Tensor", masked_sum, lambda grad, mask: grad.new_empty(()))

PROD_BACKWARD: Final[Any] = getattr(torch.ops, NAMESPACE).prod_backward.default
MASKED_SUM: Final[Any] = getattr(torch.ops, NAMESPACE).masked_sum.default
