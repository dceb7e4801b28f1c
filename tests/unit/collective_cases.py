"""Inputs for collectives, and what torch itself says that their results must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor
from torch.distributed import ReduceOp

from multiworld.channel.collectives import Tuning

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
OPS = (
    ReduceOp.SUM,
    ReduceOp.AVG,
    ReduceOp.PRODUCT,
    ReduceOp.MIN,
    ReduceOp.MAX,
    ReduceOp.BAND,
    ReduceOp.BOR,
    ReduceOp.BXOR,
)
TINY = Tuning(chunk_bytes=64, max_chunks=5, window=2)
"""Cuts what the tests send into several chunks."""
ALWAYS_SMALL = Tuning(
    chunk_bytes=64,
    window=1,
    binomial_bytes=1 << 60,
    doubling_bytes=1 << 60,
    bruck_bytes=1 << 60,
    exchange_bytes=1 << 60,
)
ALWAYS_LARGE = Tuning(
    chunk_bytes=64, max_chunks=5, window=2, binomial_bytes=0, doubling_bytes=0, bruck_bytes=0, exchange_bytes=0
)
ALWAYS_FLAT = Tuning(flat_reduce_bytes=0, flat_broadcast_bytes=0, flat_gather_bytes=0, flat_scatter_bytes=0)


def allows(op: Any, dtype: torch.dtype) -> bool:
    """Whether the reduce operation is defined for the type."""
    if dtype in COMPLEX:
        return op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT)
    if dtype in FLOATS:
        return op not in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
    return bool(op != ReduceOp.AVG)


def premultiplied_sum(factor: float | Tensor) -> Any:
    """Return a PREMUL_SUM: torch has no public way to make one."""
    return c10d._make_nccl_premul_sum(factor)  # type: ignore[attr-defined]


def random_tensor(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Return small whole numbers, so that floats are exact in any order, up to a product of nine."""
    generator = torch.Generator().manual_seed(seed)
    if dtype in COMPLEX:
        parts = torch.randint(-1, 2, (*shape, 2), generator=generator).to(torch.float64)
        return torch.view_as_complex(parts).to(dtype)
    low = 0 if dtype in (torch.uint8, torch.bool) else -2
    return torch.randint(low, 3, tuple(shape), generator=generator).to(dtype)


def rough_tensor(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Return floats whose sums depend on the order of adding, with some signed zeros, infinities and NaNs."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * 100
    kinds = torch.randint(0, 24, tuple(shape), generator=generator)
    for kind, value in enumerate((0.0, -0.0, float("inf"), float("-inf"), float("nan"))):
        values[kinds == kind] = value
    return values.to(dtype)


def reduced(tensors: Sequence[Tensor], op: Any) -> Tensor:
    """Return the reduction in the order of the list."""
    functions: dict[Any, Any] = {
        ReduceOp.SUM: torch.add,
        ReduceOp.AVG: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = functions[op](total, tensor)
    return total / len(tensors) if op == ReduceOp.AVG else total


def bits(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor: equal exactly when all bits are."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
