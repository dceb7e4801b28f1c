"""``tensor.new(...)``, the constructor from before ``new_empty`` and ``new_tensor``: on the node of the tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError
from .devices import new_tensor


def new(like: Any, args: tuple[Any, ...]) -> Any:
    """``args``: sizes, a shape, a tensor, or a sequence of data. Raises UnsupportedOperationError for a storage."""
    if not args or all(type(each) is int for each in args):
        return like.new_empty(args or (0,))
    if len(args) == 1:
        (data,) = args
        if isinstance(data, torch.Size):
            return like.new_empty(data)
        if isinstance(data, Tensor):
            return data.detach() if type(data) is type(like) else new_tensor(like, data, None, None, {})
        if isinstance(data, (list, tuple)):
            return new_tensor(like, data, None, None, {})
    like._session.check_usable("new")  # a forked worker of a DataLoader comes here first
    raise UnsupportedOperationError(
        "new()",
        f"a tensor of node {like.get_node()} makes none of {', '.join(type(each).__name__ for each in args)}",
        "Use new_empty(sizes) or new_tensor(data)",
    )
