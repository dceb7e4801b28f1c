"""Methods that need the memory of a tensor. It is on the node: here PyTorch would read or write at address 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from ..errors import UnsupportedOperationError

_FETCH: Final = "Call fetch() first"
TO_SAVE: Final = f"{_FETCH}; or module.cpu(), as for save_pretrained(), which looks for weights that share their memory"


def without_memory(what: str, advice: str = _FETCH) -> Callable[..., NoReturn]:
    """Return a method that takes any arguments and raises UnsupportedOperationError."""

    def method(self: Any, *args: object, **kwargs: object) -> NoReturn:
        raise memory_error(self, what, advice)

    return method


def memory_error(tensor: Any, what: str, advice: str = _FETCH) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        what, f"the tensor lives on node {tensor.get_node()}, and has no memory here", advice
    )
