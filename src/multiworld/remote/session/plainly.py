"""Make tensors as if no mode were active: a thread that waits reads messages inside the modes of its user."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Call ``function`` outside of ``with nodes[1]:``, of default devices, and of all other modes of this thread."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return call
