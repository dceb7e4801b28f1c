"""Matrix products whose backward makes the gradient of the input, and puts off those of weight and bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .formulas import gradient_of_rows
from .put_off import Product, PutOff


def multiply(rows: Tensor, product: Product, put_off: PutOff) -> Tensor:
    """Return the product, ``[num_rows, num_out]``, with the dtype that autocast wants."""
    dtype = _autocast_dtype(rows)
    # autograd asks for the gradient of something, also where no input needs one
    needs_gradient = rows.new_empty(0).requires_grad_()
    result: Tensor = _Multiply.apply(rows.to(dtype), needs_gradient, product, put_off, dtype)  # type: ignore[no-untyped-call]
    return result


def _autocast_dtype(rows: Tensor) -> torch.dtype:
    device = rows.device.type
    if rows.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return rows.dtype


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, needs_gradient: Tensor, product: Product, put_off: PutOff, dtype: torch.dtype
    ) -> Tensor:
        weight = product.weight.detach().to(dtype)
        matrix = weight.t() if product.is_transposed else weight
        ctx.product, ctx.put_off = product, put_off
        ctx.save_for_backward(rows, matrix)
        return rows.mm(matrix) if product.bias is None else torch.addmm(product.bias.to(dtype), rows, matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        rows, matrix = ctx.saved_tensors
        ctx.put_off.add(ctx.product, rows, gradient)
        of_rows = gradient_of_rows(gradient, rows, matrix) if ctx.needs_input_grad[0] else None
        return of_rows, None, None, None, None
