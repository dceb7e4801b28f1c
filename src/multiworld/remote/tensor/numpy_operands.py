"""NumPy's operators with a remote tensor and an array or a number of NumPy: they run on the node."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import torch

from ..errors import UnsupportedOperationError

_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "matmul": operator.matmul,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
}
"""By the name of NumPy's function. An array is a small tensor of the master then; a large one has to be sent."""


def array_ufunc(tensor: Any, function: Any, method: str, *operands: Any, **options: Any) -> Any:
    """NumPy calls this in place of a function of its own that gets a remote tensor.

    Raises UnsupportedOperationError, as for a function of one operand, or one that writes into an array.
    """
    name = function.__name__
    called = _OPERATORS.get(name)
    if called is None or method != "__call__" or options:
        raise UnsupportedOperationError(
            f"numpy.{name}",
            f"the tensor lives on node {tensor.get_node()}, and has no memory here",
            "Call PyTorch's function on the tensor, or fetch() first",
        )
    return called(*[_as_operand(each) for each in operands])


def _as_operand(value: Any) -> Any:
    import numpy as np  # who called has it; this package does not need it

    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        return value
    usable = value.flags.writeable and all(stride >= 0 for stride in value.strides)
    return torch.from_numpy(value if usable else value.copy())
