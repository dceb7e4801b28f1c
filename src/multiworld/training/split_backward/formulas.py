"""The gradients of a matrix product, computed as autograd does: the same operations, so the same bits.

Autograd looks at the strides: the gradient of a column-major matrix is computed column-major, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def gradient_of_rows(gradient: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """Return that of ``rows`` in ``rows @ matrix``."""
    if _is_column_major(rows.size(), rows.stride()):
        return matrix.mm(gradient.t()).t()
    return gradient.mm(matrix.t())


def gradient_of_matrix(gradient: Tensor, rows: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return that of the matrix of this size and these strides in ``rows @ matrix``."""
    if _is_column_major(size, stride):
        return gradient.t().mm(rows).t()
    return rows.t().mm(gradient)


def _is_column_major(size: Sequence[int], stride: Sequence[int]) -> bool:
    return stride[0] == 1 and stride[1] == size[0]
