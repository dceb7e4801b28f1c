"""The strides that PyTorch's elementwise kernels give their results, where those without data foresee others.

The kernels of ``meta`` that are written in Python order some dimensions of one element, and of broadcast operands, in
another way than those of ``TensorIterator`` (``aten/src/ATen/TensorIterator.cpp``: ``reorder_dimensions``,
``compute_fast_setup_type``), which this follows. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..protocol.elements import contiguous_strides
from ..protocol.template import Keywords

aten = torch.ops.aten
_LIKE_THE_FIRST: Final = frozenset(
    {
        aten.deg2rad.default,
        aten.empty_like.default,
        aten.fill.Scalar,
        aten.fill.Tensor,
        aten.flip.default,
        aten.full_like.default,
        aten.hardtanh.default,
        aten.nan_to_num.default,
        aten.ones_like.default,
        aten.rad2deg.default,
        aten.rand_like.default,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
        aten.randn_like.default,
        aten.relu6.default,
        aten.sort.default,
        aten.sort.stable,
        aten.zeros_like.default,
    }
)
"""Their results have the strides of ``empty_like`` of their first argument."""
_CONTIGUOUS: Final = frozenset(
    {
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.nonzero_static.default,
        aten.tril.default,
        aten.triu.default,
    }
)
_OTHERWISE: Final = frozenset(
    {
        aten.clone.default,
        aten.isfinite.default,
        aten.isinf.default,
        aten.ldexp.Tensor,
        aten.mvlgamma.default,
        aten.native_dropout_backward.default,
        aten.positive.default,
        aten.pow.Scalar,
    }
)
"""Elementwise operators that are made of others, or that return their argument."""
_NUMBER_IS_AN_OPERAND: Final = ("Scalar", "Scalar_mode", "Scalar_Tensor", "x_scalar", "n_scalar")
_SHIFTS: Final = frozenset({aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor_Scalar})
_NUMBER_IS_A_PARAMETER: Final = frozenset({aten.lerp.Scalar, aten.masked_fill.Scalar})


def as_with_data(func: Any, args: Sequence[Any], kwargs: Keywords, returned: Any) -> Any:
    """Return the results of an operator on tensors without data with the strides that they have with data."""
    if func is aten.index.Tensor:
        return _with_stride(returned, index_strides(args[0], args[1]))
    if func in _CONTIGUOUS:
        return _with_stride(returned, contiguous_strides(tuple(returned.shape)))
    if func in _LIKE_THE_FIRST:
        if kwargs.get("memory_format") not in (None, torch.preserve_format):
            return returned
        stride = strides_of_like(args[0])
        if isinstance(returned, Tensor):
            return _with_stride(returned, stride)
        return tuple(_with_stride(each, stride) for each in returned)
    if not isinstance(returned, Tensor) or not _is_elementwise(func):
        return returned
    operands = _operands(func, args, kwargs)
    if any(returned is each for each in operands) or returned._is_view():
        return returned
    return _with_stride(returned, elementwise_strides(operands))


def _with_stride(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)


def _is_elementwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags and not func._schema.is_mutable and func not in _OTHERWISE


def _operands(func: Any, args: Sequence[Any], kwargs: Keywords) -> list[Tensor]:
    """Return its tensors; a number that stands for one, or that the operator makes one of, is 0-dimensional."""
    operands: list[Tensor] = []
    has_number = func._overloadname in _NUMBER_IS_AN_OPERAND or func in _SHIFTS
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if isinstance(value, Tensor):
            operands.append(value)
        elif isinstance(value, (bool, int, float, complex)) and isinstance(argument.type, torch.TensorType):
            has_number = True
    if has_number and func not in _NUMBER_IS_A_PARAMETER:
        operands.append(torch.empty((), device="meta"))
    return operands


def elementwise_strides(operands: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the strides of the result of an elementwise operator, by operands without data; 0-dimensional ones too."""
    shape = tuple(torch.broadcast_shapes(*(each.shape for each in operands)))  # type: ignore[no-untyped-call]
    if all(tuple(each.shape) == shape for each in operands):
        same = _strides_of_same_shape(operands)
        if same is not None:
            return same
    strides = [_broadcast(each, shape) for each in operands]
    order = _order(shape, strides)
    if order == list(reversed(range(len(shape)))):
        return contiguous_strides(shape)
    result = [0] * len(shape)
    expected = 1
    for dimension in order:
        result[dimension] = expected
        expected *= shape[dimension]
    return tuple(result)


def index_strides(tensor: Tensor, indices: Sequence[Tensor | None]) -> tuple[int, ...]:
    """Return the strides of ``tensor[indices]``, as ``AdvancedIndex`` of ``TensorAdvancedIndexing.cpp`` does.

    ``indices``: numbers of elements, by dimension; None takes all of one. All are without data.
    """
    given = [each for each in indices if each is not None]
    expanded = iter(torch.broadcast_tensors(*given))  # type: ignore[no-untyped-call]
    by_dim = [None if each is None else next(expanded) for each in indices]
    by_dim += [None] * (tensor.dim() - len(by_dim))
    indexed = [dim for dim, each in enumerate(by_dim) if each is not None]
    if indexed[-1] - indexed[0] != len(indexed) - 1:  # apart: they come first
        order = indexed + [dim for dim, each in enumerate(by_dim) if each is None]
        tensor, by_dim = tensor.permute(order), [by_dim[dim] for dim in order]
        indexed = list(range(len(indexed)))
    before, after = indexed[0], tensor.dim() - indexed[-1] - 1
    shape = next(tuple(each.shape) for each in by_dim if each is not None)
    source = torch.empty_strided(
        (*tensor.shape[:before], *shape, *tensor.shape[indexed[-1] + 1 :]),
        (*tensor.stride()[:before], *(0,) * len(shape), *tensor.stride()[indexed[-1] + 1 :]),
        device="meta",
    )
    operands = [each.reshape((1,) * before + shape + (1,) * after) for each in by_dim if each is not None]
    return elementwise_strides([source, *operands])


def strides_of_like(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides that ``empty_like`` gives (``infer_dense_strides`` in ``aten/src/ATen/ExpandUtils.cpp``)."""
    if _is_dense(tensor):
        return tensor.stride()
    shape = tuple(tensor.shape)
    result = [0] * len(shape)
    expected = 1
    for dimension in _order(shape, [tensor.stride()]):
        result[dimension] = expected
        expected *= max(shape[dimension], 1)
    return tuple(result)


def _strides_of_same_shape(operands: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Operands that all lie in memory in one way need no order."""
    first = operands[0]
    if all(each.is_contiguous() for each in operands):
        return contiguous_strides(tuple(first.shape))
    if first.dim() == 4 and all(each.is_contiguous(memory_format=torch.channels_last) for each in operands):
        return tuple(torch.empty_like(first, memory_format=torch.channels_last).stride())
    if all(_is_dense(each) and each.stride() == first.stride() for each in operands):
        return tuple(first.stride())
    return None


def _is_dense(tensor: Tensor) -> bool:
    """Whether elements fill their memory without gaps and overlaps, as PyTorch sees it: without elements they do."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for is_short, stride, size in sorted(
        (size < 2, stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        if is_short:
            return True
        if stride != expected:
            return False
        expected *= size
    return True


def _broadcast(operand: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return its strides for ``shape``: 0 where it is repeated."""
    added = len(shape) - operand.dim()
    own = zip(operand.shape, operand.stride(), shape[added:], strict=True)
    return (0,) * added + tuple(0 if size == 1 and length != 1 else stride for size, stride, length in own)


def _order(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the dimensions from the fastest to the slowest: an insertion sort that leaves what can't be compared."""
    order = list(reversed(range(len(shape))))
    for place in range(1, len(order)):
        later = place
        for earlier in range(place - 1, -1, -1):
            found = _compare(shape, strides, order[earlier], order[later])
            if found > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
            elif found < 0:
                break
    return order


def _compare(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]], one: int, other: int) -> int:
    """Return 1 if ``one`` is slower than ``other``, -1 if it is faster, 0 if no operand tells."""
    for each in strides:
        if each[one] == 0 or each[other] == 0:
            continue
        if each[one] != each[other]:
            return -1 if each[one] < each[other] else 1
        if shape[one] > shape[other]:
            return 1
    return 0
