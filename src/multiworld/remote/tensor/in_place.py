"""Errors of operators that write their first argument: kernels without data check less than those with data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from ..protocol.template import Keywords

aten = torch.ops.aten
_INDEX_PUTS: Final = frozenset({aten.index_put_.default, aten._index_put_impl_.default})
_UNCHECKED: Final = frozenset(
    {
        aten.conj_physical_.default,
        aten.masked_fill_.Scalar,
        aten.masked_fill_.Tensor,
        aten.nan_to_num_.default,
        aten.threshold_.default,
    }
)
"""They may write an element twice."""


def check_in_place(func: Any, args: Sequence[Any], kwargs: Keywords) -> None:
    """Raises RuntimeError as PyTorch does with data: for shapes, dtypes and memory that do not fit. ``args``: without.

    Else the node would find it, and the tensor be lost: nobody knows what a failed write has left in it.
    """
    if func in _INDEX_PUTS:
        _check_values(args[0], args[1], args[2])
    elif func is aten.copy_.default:
        if not _may_be_same(args[0], args[1]):
            _check_overlap(args[0])
    elif _is_elementwise(func):
        _check_shape([each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)])
        _check_overlap(args[0])
        _check_dtype(func, args, kwargs)


@cache
def _is_elementwise(func: Any) -> bool:
    first = func._schema.arguments[0] if func._schema.arguments else None
    if first is None or first.alias_info is None or not first.alias_info.is_write or func in _UNCHECKED:
        return False
    plain = _that_makes_new(func)  # some have the tag, and some have it here only
    is_pointwise = torch.Tag.pointwise in func.tags or (plain is not None and torch.Tag.pointwise in plain.tags)
    return is_pointwise and func._schema.name.endswith("_")


def _check_shape(operands: Sequence[Tensor]) -> None:
    target = tuple(operands[0].shape)
    shape = tuple(torch.broadcast_shapes(*(each.shape for each in operands)))  # type: ignore[no-untyped-call]
    if shape != target:
        raise RuntimeError(f"output with shape {list(target)} doesn't match the broadcast shape {list(shape)}")


def _check_overlap(target: Tensor) -> None:
    lengths = zip(target.shape, target.stride(), strict=True)
    if not target.is_contiguous() and any(size > 1 and stride == 0 for size, stride in lengths):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def _may_be_same(target: Tensor, source: Tensor) -> bool:
    """Whether both may be one view: then nothing is written, as behind ``x[0] += 1``. Only the node knows."""
    same = (target.shape, target.stride(), target.dtype) == (source.shape, source.stride(), source.dtype)
    return same and target.storage_offset() == source.storage_offset()


def _check_dtype(func: Any, args: Sequence[Any], kwargs: Keywords) -> None:
    plain = _that_makes_new(func)
    if plain is None:
        return
    with suppress(NotImplementedError):
        found, target = plain(*args, **kwargs).dtype, args[0].dtype
        if not torch.can_cast(found, target):
            raise RuntimeError(f"result type {found} can't be cast to the desired output type {target}")


def _check_values(target: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> None:
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return  # only the node knows how many elements they take, and one value may have any dtype
    if values.dtype is not target.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {target.dtype} for the destination and "
            f"{values.dtype} for the source."
        )
    shape = tuple(aten.index.Tensor(target, indices).shape)
    given = tuple(values.shape)
    fits = len(given) <= len(shape) and all(
        one in (1, other) for one, other in zip(reversed(given), reversed(shape), strict=False)
    )
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing result of shape "
            f"{list(shape)}"
        )


@cache
def _that_makes_new(func: Any) -> Any:
    """Return the operator with the same arguments that makes a new tensor; None if there is none."""
    packet = getattr(aten, func._schema.name.partition("::")[2].removesuffix("_"), None)
    wanted = [(each.name, str(each.type)) for each in func._schema.arguments]
    for name in packet.overloads() if packet is not None else ():
        other = getattr(packet, name)
        if [(each.name, str(each.type)) for each in other._schema.arguments] == wanted and not other._schema.is_mutable:
            return other
    return None
