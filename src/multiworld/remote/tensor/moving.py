"""Values between the master and a node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError
from ..protocol.specs import number_of, spec_of
from ..session.session import Session, next_id
from .wrapping import make


def send(cls: type[Any], session: Session, tensor: Tensor, *, wait: bool = True) -> Any:
    """Return a copy of a local tensor on a node. ``wait``: until the memory of ``tensor`` may be changed."""
    session.check_usable("send")
    if tensor.layout is not torch.strided:
        raise UnsupportedOperationError("send", f"the tensor is {tensor.layout}", "Send tensor.to_dense()")
    id_ = next_id()
    spec = session.load(tensor, id_, wait=wait)
    return make(cls, session, number_of(spec), id_)


def values_of(tensor: Any, operation: str = "fetch") -> Tensor:
    """Return a local copy of a remote tensor, with its strides. A sync point; raises as ``Session.fetch``."""
    spec = spec_of(tensor._spec)
    return tensor._session.fetch(tensor._id, spec, operation)  # type: ignore[no-any-return]
