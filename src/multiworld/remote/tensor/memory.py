"""Methods that need the memory of a tensor. It is on the node: here PyTorch would read or write at address 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import UnsupportedOperationError


def without_memory(what: str) -> Callable[..., NoReturn]:
    """Return a method that takes any arguments and raises UnsupportedOperationError."""

    def method(self: Any, *args: object, **kwargs: object) -> NoReturn:
        raise memory_error(self, what)

    return method


def memory_error(tensor: Any, what: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        what, f"the tensor lives on node {tensor.get_node()}, and has no memory here", "Call fetch() first"
    )
