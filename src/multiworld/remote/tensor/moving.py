"""Values between the master and a node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..protocol.specs import Spec, number_of, spec_of
from ..session.session import Session, next_id
from .wrapping import make


def send(cls: type[Any], session: Session, tensor: Tensor, *, wait: bool = True) -> Any:
    """Return a copy of a local tensor on a node. ``wait``: until the memory of ``tensor`` may be changed."""
    session.check_usable("send")
    id_ = next_id()
    spec = session.load(tensor, id_, wait=wait)
    return make(cls, session, number_of(spec), id_)


def values_of(tensor: Any, operation: str = "fetch") -> Tensor:
    """Return a local copy of a remote tensor, with its strides. A sync point; raises as ``Session.fetch``."""
    spec = spec_of(tensor._spec)
    return with_strides(tensor._session.fetch(tensor._id, spec, operation), spec)


def with_strides(values: Tensor, spec: Spec) -> Tensor:
    """Return values that came in the order of their dimensions with the strides that they had, if these are dense."""
    if values.stride() == spec.stride or not _is_dense(spec):
        return values
    return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype).copy_(values)


def _is_dense(spec: Spec) -> bool:
    """Whether the elements fill their memory without gaps, and none is there twice."""
    expected = 1
    for stride, length in sorted(zip(spec.stride, spec.size, strict=True)):
        if length > 1 and stride != expected:
            return False
        expected *= max(length, 1)
    return True
