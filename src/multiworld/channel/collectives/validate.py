"""Decide whether the arguments of a collective make sense, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .reduction import reduce_op_factor, reduce_op_name

__all__ = ["check_reduce_op", "check_separate"]

_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_COMPLEX = frozenset((torch.complex64, torch.complex128))
_INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool))


def check_reduce_op(op: Any, dtype: torch.dtype) -> None:
    """Check that the reduce operation is defined for elements of that type, and that a PREMUL_SUM has its factor.

    TypeError or ValueError if not.
    """
    name = reduce_op_name(op)
    if dtype not in _FLOATS | _COMPLEX | _INTEGERS:
        raise TypeError(f"ReduceOp.{name} cannot reduce {dtype}: torch cannot add it on the CPU; convert it first")
    if name in ("BAND", "BOR", "BXOR") and dtype not in _INTEGERS:
        raise TypeError(f"ReduceOp.{name} works on the bits of integers and bool, not on {dtype}")
    if name in ("MIN", "MAX") and dtype in _COMPLEX:
        raise TypeError(f"ReduceOp.{name} needs an order, which complex numbers have not: got {dtype}")
    if name in ("AVG", "PREMUL_SUM") and dtype in _INTEGERS:
        raise TypeError(f"ReduceOp.{name} makes fractions, which {dtype} cannot hold: use SUM, or a float type")
    if name == "PREMUL_SUM":
        reduce_op_factor(op)


def check_separate(outputs: Sequence[Tensor], name: str, inputs: Sequence[Tensor] = (), inputs_name: str = "") -> None:
    """Refuse outputs that start at the same memory as each other, as in ``[buffer] * size``, or as an input.

    They would be written over one another. ValueError names the two.
    """
    owners = {
        (tensor.device, tensor.data_ptr()): f"{inputs_name}[{i}]" for i, tensor in enumerate(inputs) if tensor.numel()
    }
    for index, tensor in enumerate(outputs):
        if not tensor.numel():
            continue
        this = f"{name}[{index}]"
        other = owners.setdefault((tensor.device, tensor.data_ptr()), this)
        if other != this:
            raise ValueError(f"{this} and {other} share memory: each needs its own")
