"""Tensors to send, and what torch itself says that a reduction of them must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor
from torch.distributed import ReduceOp

from ..channel.payload.tensors import DTYPES as MOVABLE
from ..channel.payload.tensors import memory_of

__all__ = [
    "COMPLEX",
    "FLOATS",
    "INTEGERS",
    "MOVABLE",
    "OPS",
    "PERIOD",
    "REDUCIBLE",
    "allows",
    "any_tensor",
    "bits",
    "difference",
    "premultiplied_sum",
    "random_tensor",
    "reduced",
    "repeated",
    "rough_tensor",
]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
REDUCIBLE = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
PERIOD = 65_537  # prime, so that what is out of place by a block does not look right
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


def any_tensor(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Return random bits: NaNs with payloads, infinities, subnormal numbers. A bool is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    numel = torch.Size(shape).numel()
    high = 2 if dtype is torch.bool else 256
    size_bytes = numel * dtype.itemsize
    raw = torch.randint(0, high, (min(size_bytes, PERIOD),), dtype=torch.uint8, generator=generator)
    raw = repeated(raw, size_bytes)
    return raw.view(dtype).view(tuple(shape)) if numel else torch.empty(tuple(shape), dtype=dtype)


def repeated(sample: Tensor, numel: int) -> Tensor:
    """Return so many elements, those of ``sample`` again and again: drawing many would take long."""
    return sample if sample.numel() >= numel else sample.repeat(-(-numel // max(1, sample.numel())))[:numel].clone()


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
    contiguous = tensor.detach().contiguous()  # kept alive while its memory is read
    return bytes(memory_of(contiguous))


def difference(found: Tensor, expected: Tensor) -> str:
    """Say where the bits of two CPU tensors of one dtype differ; empty if nowhere."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"it is {found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if bits(found) == bits(expected):
        return ""
    size = found.dtype.itemsize
    pairs = [tensor.detach().contiguous().view(-1).view(torch.uint8).view(-1, size) for tensor in (found, expected)]
    wrong = (pairs[0] != pairs[1]).any(1).nonzero().view(-1)
    first = int(wrong[0])
    values = [_text(tensor.detach().reshape(-1)[first]) for tensor in (found, expected)]
    return f"{len(wrong)} of {found.numel()} elements are wrong: element {first} is {values[0]} instead of {values[1]}"


def _text(element: Tensor) -> str:
    """Return a value, and its bits, by which values that look alike differ."""
    shown = str(element.float().item()) if element.dtype.itemsize == 1 and element.is_floating_point() else ""
    return f"{shown or element.item()} (0x{bits(element)[::-1].hex()})"
