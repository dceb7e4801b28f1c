"""Operations of a group as events of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...wire.progress.operation import Operation

_autograd: Any = torch.autograd  # whose stubs know nothing of these


def recorded(name: str, tensors: Sequence[Tensor], start: Callable[[], Operation[Any]]) -> Operation[Any]:
    """Start an operation; if the profiler runs on this thread, it gets an event that ends with the operation.

    As those of PyTorch's backends (``gloo:all_reduce``), it is of the kind that may end on another thread.
    """
    if not _autograd._profiler_enabled():
        return start()
    event = _autograd._record_function_with_args_enter(f"multiworld:{name}", *tensors)
    try:
        operation = start()
    except BaseException:
        _autograd._record_function_with_args_exit(event)
        raise
    operation.add_callback(lambda _: _autograd._record_function_with_args_exit(event))
    return operation
