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
from .moving import send
from .naming import node_of
from .planned import create

_OF_A_VALUE = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class OnNode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators with tensors among their arguments run where these are; those without run on the node."""

    def __init__(self, cls: type[Any], session: Callable[[], Session]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cls, self._session = cls, session

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Keywords | None = None
    ) -> Any:
        if func in _OF_A_VALUE and type(args[0]) is Tensor:  # of torch.tensor([1, 2])
            return send(self._cls, self._session(), args[0])
        if _has_tensor(args) or _has_tensor((kwargs or {}).values()):
            return func(*args, **(kwargs or {}))
        told = dict(kwargs or {})
        number = node_of(told.get("device"))
        if number is None:
            return create(self._cls, self._session(), func, args, told)
        told["device"] = torch.device("cpu")
        return create(self._cls, session_of(number), func, args, told)


def _has_tensor(values: Any) -> bool:
    return any(
        isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and _has_tensor(value)) for value in values
    )
