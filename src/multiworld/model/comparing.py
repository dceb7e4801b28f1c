"""Compares answers and tensors: bit by bit, or to within what rounding makes different."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["agree", "is_close", "leaves", "same"]


def leaves(answer: Any) -> list[torch.Tensor]:
    """Return the tensors of an answer, whatever its structure."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    items = answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, (list, tuple)) else ()
    return [leaf for item in items for leaf in leaves(item)]


def agree(one: Any, other: Any) -> bool:
    """Return whether two answers to one request are the same; on a GPU, sums may come in another order each time."""
    ones, others = leaves(one), leaves(other)
    return len(ones) == len(others) and all(
        same(first, second) or (first.is_cuda and is_close(first, second))
        for first, second in zip(ones, others, strict=True)
    )


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal, bit by bit but for the kinds of NaN."""
    if one.dtype != other.dtype or one.layout != other.layout or one.is_nested != other.is_nested:
        return False
    if one.is_nested:
        ones, others = one.unbind(), other.unbind()
        return len(ones) == len(others) and all(map(same, ones, others))
    if one.shape != other.shape:
        return False
    if one.layout is not torch.strided:
        return same(one.to_dense(), other.to_dense())
    return torch.equal(one, other) or (
        not one.is_quantized and bool(((one == other) | ((one != one) & (other != other))).all())
    )


def is_close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 0.0) -> bool:
    """Return whether two tensors differ by no more than rounding may make out of one computation.

    That is the root of their type's precision (3.5e-4 for float32), or ``tolerance`` if that is more, of the largest
    value: between the one rounding of an operation, and what would be another result.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()) or not one.numel():
        return torch.equal(one, other)
    tolerance = max(math.sqrt(torch.finfo(one.dtype).eps), tolerance)
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    largest = float(one.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
