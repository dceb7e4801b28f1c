"""``local.data = remote`` is an error: PyTorch takes both for tensors of the CPU, and would read what is not here.

It asks an operator whether a tensor can take the place of another. For tensors of the CPU that are seen by autograd the
operator gets a kernel of ours. In inference mode PyTorch leaves that kernel out.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

import torch
from torch import Tensor, nn

from ..errors import UnsupportedOperationError
from .remote_tensor import RemoteTensor

_asked: Final = torch.ops.aten._has_compatible_shallow_copy_type.default
_lock = threading.Lock()  # one thread sets the kernel
_libraries: list[torch.library.Library] = []  # a kernel lasts as long as its library


def guard_local_data() -> None:
    """From here on such an assignment raises UnsupportedOperationError in this process. Again: nothing."""
    with _lock:
        if not _libraries:
            library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            library.impl("_has_compatible_shallow_copy_type", _can_take, "AutogradCPU")  # type: ignore[no-untyped-call]
            _libraries.append(library)


def _can_take(target: Tensor, source: Tensor) -> bool:
    if isinstance(target, RemoteTensor):
        return True  # and the question must not go to its node
    if isinstance(source, RemoteTensor):
        if sys._getframe(1).f_globals.get("__name__") == nn.Module.__module__:
            return False  # ``Module.to`` asks before it chooses another way
        number = source.get_node()
        raise UnsupportedOperationError(
            "local.data = remote",
            f"a tensor of the master can't become one of node {number}",
            f"Move the module: nodes[{number}].load(module), or module.to('remote:{number}'); or make a new tensor",
        )
    with torch._C._AutoDispatchBelowAutograd():
        return bool(_asked(target, source))
