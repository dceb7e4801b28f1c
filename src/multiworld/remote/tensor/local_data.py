"""``local.data = remote`` is an error: PyTorch takes both for tensors of the CPU, and would read what is not here."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from ..errors import UnsupportedOperationError
from .remote_tensor import RemoteTensor


def can_take(keys: Any, target: Any, source: Any) -> bool:
    """The kernel by which PyTorch asks whether a tensor can take the place of another. One of the two is remote.

    Raises UnsupportedOperationError for a local ``target``.
    """
    if isinstance(target, RemoteTensor):
        return True
    if sys._getframe(1).f_globals.get("__name__") == nn.Module.__module__:
        return False  # ``Module.to`` asks before it chooses another way
    number = source.get_node()
    raise UnsupportedOperationError(
        "local.data = remote",
        f"a tensor of the master can't become one of node {number}",
        f"Move the module: nodes[{number}].load(module), or module.to('remote:{number}'); or make a new tensor",
    )
