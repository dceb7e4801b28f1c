"""Compares answers and tensors, bit by bit or within rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def leaves(answer: Any) -> list[torch.Tensor]:
    """Return the tensors of an answer of any structure."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    items = answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, (list, tuple)) else ()
    return [leaf for item in items for leaf in leaves(item)]


def agree(one: Any, other: Any) -> bool:
    """Return whether two answers to one request are the same. On a GPU they may differ by rounding."""
    ones, others = leaves(one), leaves(other)
    return len(ones) == len(others) and all(
        same(first, second) or (first.is_cuda and is_close(first, second))
        for first, second in zip(ones, others, strict=True)
    )


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal bit by bit, except that all NaN are equal."""
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
    """Return whether two tensors differ by no more than rounding explains.

    The bound is relative to the largest value: the square root of the type's precision (3.5e-4 for float32), or
    ``tolerance`` if that is more.
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
