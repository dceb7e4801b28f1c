"""Inside ``with nodes[1]:`` functions of PyTorch's that make a tensor make it on that node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..protocol.template import Keywords
from ..session.open_connections import session_of
from ..session.session import Session
from .devices import CPU, moved_to
from .moving import send
from .naming import node_of
from .planned import create

_OF_A_VALUE = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class OnNode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators with tensors among their arguments run where these are; those without run on the node.

    ``device``: of the node, for all that take one; None: each names its own, and the default is the node's CPU.
    """

    def __init__(self, cls: type[Any], session: Callable[[], Session], device: torch.device | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cls, self._session, self._device = cls, session, device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Keywords | None = None
    ) -> Any:
        told = dict(kwargs or {})
        if func in _OF_A_VALUE and type(args[0]) is Tensor:  # of torch.tensor([1, 2])
            return moved_to(send(self._cls, self._session(), args[0]), self._device or CPU)
        if self._device is not None and _takes_device(func):
            told["device"] = self._device
        if _has_tensor(args) or _has_tensor(told.values()):
            return func(*args, **told)
        number = node_of(told.get("device"))
        if number is None:
            return create(self._cls, self._session(), func, args, told)
        told["device"] = torch.device("cpu")
        return create(self._cls, session_of(number), func, args, told)


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _has_tensor(values: Any) -> bool:
    return any(
        isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and _has_tensor(value)) for value in values
    )
