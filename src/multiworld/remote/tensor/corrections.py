"""Correct what kernels without data foresee where those with data return other shapes (PyTorch 2.13 and 2.14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..protocol.elements import contiguous_strides
from ..protocol.specs import spec_of

aten = torch.ops.aten

ASKED: Final[frozenset[Any]] = frozenset({aten._embedding_bag.default, aten._embedding_bag_forward_only.default})
"""Their shapes depend on the path that the kernel takes: the node is asked, and the master waits."""
CONTIGUOUS_OUT: Final[frozenset[Any]] = frozenset({aten.stack.out})
"""An ``out=`` that they let grow is contiguous, also where a new result would not be."""
_BATCH_NORMS: Final[frozenset[Any]] = frozenset({aten.native_batch_norm.default, aten._native_batch_norm_legit.default})
_COLUMN_MAJOR: Final = frozenset({aten._linalg_svd.default, aten.linalg_eig.default})
"""On the CPU the matrices that they return last are column-major."""
_TRAINING: Final = 5  # the place of that argument
_BATCH_NORM_BACKWARDS: Final[frozenset[Any]] = frozenset(
    {aten.native_batch_norm_backward.default, aten.batch_norm_backward.default}
)
_WANTED: Final = 9  # the place of ``output_mask``


def corrected(func: Any, args: Sequence[Any], returned: Any) -> Any:
    """Return what the operator returns with data.

    A batch norm in evaluation saves no statistics: they are empty. Its backward makes no gradient that nobody wants.
    """
    if func in _BATCH_NORMS and len(args) > _TRAINING and not args[_TRAINING]:
        return (returned[0], *(each.new_empty(0) for each in returned[1:]))
    if func in _COLUMN_MAJOR and spec_of(args[0]._spec).device == "cpu":
        return (*returned[:-1], _column_major(returned[-1]))
    if func in _BATCH_NORM_BACKWARDS and len(args) > _WANTED:
        return tuple(each if wanted else None for each, wanted in zip(returned, args[_WANTED], strict=True))
    return returned


def _column_major(matrices: Tensor) -> Tensor:
    size = tuple(matrices.shape)
    if len(size) < 2:  # it was not to be computed
        return matrices
    transposed = contiguous_strides((*size[:-2], size[-1], size[-2]))
    return matrices.new_empty_strided(size, (*transposed[:-2], transposed[-1], transposed[-2]))
