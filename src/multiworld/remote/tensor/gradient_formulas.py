"""Gradients whose formulas depend on data: PyTorch takes others for subclasses of tensors, which round otherwise.

Here the node takes the formula of plain tensors, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..protocol.own_operators import MASKED_SUM, PROD_BACKWARD
from .dispatch import dispatch
from .remote_tensor import RemoteTensor
from .wrapping import KEYS

aten = torch.ops.aten


class Product(torch.autograd.Function):
    """``prod``; ``dim``: the one that is reduced, none for all. Its gradient depends on how many elements are zero."""

    @staticmethod
    def forward(ctx: Any, factors: Any, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None) -> Any:
        ctx.save_for_backward(factors)
        ctx.set_materialize_grads(False)
        ctx.how = dim, keepdim, dtype
        return _product(factors, dim, keepdim, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (factors,) = gradients, ctx.saved_tensors
        dim, keepdim, dtype = ctx.how
        if gradient is None:
            found = None
        elif torch.is_grad_enabled() or type(gradient) is not RemoteTensor:  # somebody wants second derivatives
            with torch.enable_grad(), torch._C._ExcludeDispatchKeyGuard(KEYS):
                product = _product(factors, dim, keepdim, dtype)
            (found,) = torch.autograd.grad(product, factors, gradient, create_graph=torch.is_grad_enabled())
        else:
            arguments = (gradient, factors, list(dim), keepdim)
            found = dispatch(RemoteTensor, PROD_BACKWARD, (), arguments, {"dtype": dtype})
        return found, None, None, None


def _product(factors: Any, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None) -> Any:
    if dim:
        return aten.prod.dim_int(factors, dim[0], keepdim, dtype=dtype)
    return aten.prod.default(factors, dtype=dtype)


class MaskedFill(torch.autograd.Function):
    """``masked_fill`` with a tensor: its gradient is a sum of elements, and the mask says of how many."""

    @staticmethod
    def forward(ctx: Any, target: Any, mask: Any, value: Any) -> Any:
        ctx.save_for_backward(mask)
        ctx.set_materialize_grads(False)
        return aten.masked_fill.Tensor(target, mask, value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (mask,) = gradients, ctx.saved_tensors
        if gradient is None:
            return None, None, None
        of_target = gradient.masked_fill(mask, 0) if ctx.needs_input_grad[0] else None
        if torch.is_grad_enabled() or type(gradient) is not RemoteTensor:  # somebody wants second derivatives
            return of_target, None, torch.where(mask, gradient, 0).sum()
        return of_target, None, dispatch(RemoteTensor, MASKED_SUM, (), (gradient, mask))
