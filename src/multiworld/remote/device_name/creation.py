"""Operators that PyTorch sends to the device type ``remote``: they make a tensor on the node with that number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError
from ..protocol.template import Keywords
from ..session.open_connections import session_of
from ..session.session import Session
from ..tensor.moving import send
from ..tensor.naming import NAME, named, node_of
from ..tensor.planned import create
from ..tensor.remote_tensor import RemoteTensor


def call(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of all operators of this device type. Raises ConnectError for a node that is not there."""
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):
        return Carrier.call(func, args, kwargs)
    number = node_of(kwargs.get("device"))
    if number is None:
        raise UnsupportedOperationError(
            str(func), "its operands say that they are on a node, and none is", f"Make them with device='{NAME}:N'"
        )
    return create_on(number, func, args, kwargs)


def copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """The kernel of ``copy_``: see ``Carrier``."""
    return call(torch.ops.aten.copy_.default, target, source, non_blocking)


def create_on(number: int, func: Any, args: Sequence[Any], kwargs: Keywords) -> Any:
    """Call an operator without tensors on the node of that number."""
    session = session_of(number)
    told = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return create(RemoteTensor, session, func, args, {**told, "device": torch.device("cpu")})


class Carrier(Tensor):
    """Stands for a tensor of a node inside ``torch.tensor``, which hides our tensors from PyTorch while it runs.

    ``values``: what the node will get. The first operator after ``torch.tensor`` sends it; that is ``lift_fresh``,
    at its end, so that nobody else sees a carrier.
    """

    values: Tensor  # type: ignore[assignment]
    number: int
    there: RemoteTensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def call(cls, func: Any, args: Sequence[Any], kwargs: Keywords) -> Any:
        """Run an operator here, while our tensors are hidden."""
        number = node_of(kwargs.get("device"))
        known = [each for each in args if isinstance(each, Carrier)]
        values = [each.values if isinstance(each, Carrier) else each for each in args]
        told = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if number is not None:
            told["device"] = torch.device("cpu")
        result = func(*values, **told)
        for each in known:
            if result is each.values:  # it was written
                return each
        return cls.carry(result, known[0].number if number is None else number)

    @classmethod
    def carry(cls, values: Tensor, number: int) -> Carrier:
        carrier: Carrier = Tensor._make_wrapper_subclass(
            cls, values.size(), values.stride(), dtype=values.dtype, device=named(number)
        )
        carrier.values, carrier.number, carrier.there = values, number, None
        return carrier

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Keywords | None = None
    ) -> Any:
        """Nothing is hidden any more: go on with the tensor on the node."""
        if func is torch.ops.aten.lift_fresh.default:
            return args[0].sent()
        sent = {name: cls._sent_in(value) for name, value in (kwargs or {}).items()}
        return func(*[cls._sent_in(value) for value in args], **sent)

    def sent(self) -> RemoteTensor:
        if self.there is None:
            session: Session = session_of(self.number)
            self.there = send(RemoteTensor, session, self.values)
        return self.there

    @classmethod
    def _sent_in(cls, value: Any) -> Any:
        if isinstance(value, Carrier):
            return value.sent()
        return [cls._sent_in(each) for each in value] if isinstance(value, (list, tuple)) else value
