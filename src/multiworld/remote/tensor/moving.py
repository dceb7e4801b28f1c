"""Values between the master and nodes. All copies from place to place come here, those of autograd too."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..between.worlds import Between, between_of
from ..errors import UnsupportedOperationError
from ..protocol.elements import arrived_spec
from ..protocol.specs import number_of, spec_of
from ..session.session import Session, next_id
from .wrapping import make


class Place(NamedTuple):
    """``session``: of a node; None: the master. ``device``: on that node."""

    session: Session | None
    device: str = "cpu"


MASTER = Place(None)


def send(cls: type[Any], session: Session, tensor: Tensor, *, wait: bool = True) -> Any:
    """Return a copy of a tensor on a node. ``wait``: until the memory of a local ``tensor`` may be changed.

    Raises TypeError for what is no tensor, or one that is made of others.
    """
    session.check_usable("send")
    if not isinstance(tensor, Tensor):
        raise TypeError(f"send takes a tensor, got {type(tensor).__name__}: make one with torch.tensor(...)")
    if isinstance(tensor, cls):
        remote = tensor.detach()
        there = copied(cls, remote, Place(session), "send")
        return there.clone() if there is remote else there
    if is_traceable_wrapper_subclass(tensor):
        raise TypeError(f"send: a {type(tensor).__name__} is made of other tensors: send each of them")
    if tensor.layout is not torch.strided:
        raise UnsupportedOperationError("send", f"the tensor is {tensor.layout}", "Send tensor.to_dense()")
    if tensor.is_quantized:
        raise UnsupportedOperationError("send", "the tensor is quantized", "Send tensor.dequantize()")
    id_ = next_id()
    spec = session.loader.load(tensor, id_, wait=wait)
    return make(cls, session, number_of(spec), id_)


def values_of(tensor: Any, operation: str = "fetch") -> Tensor:
    """Return a local copy of a remote tensor, with its strides. A sync point; raises as ``Session.fetch``."""
    spec = spec_of(tensor._spec)
    return tensor._session.fetch(tensor._id, spec, operation)  # type: ignore[no-any-return]


def place_of(tensor: Any) -> Place:
    session = getattr(tensor, "_session", None)
    return MASTER if session is None else Place(session, spec_of(tensor._spec).device)


def moved(cls: type[Any], tensor: Any, place: Place, operation: str = "to") -> Any:
    """Return a copy of a tensor elsewhere, and gradients come back. From a node to the master it waits.

    ``cls``: of remote tensors. Raises RemoteOperationError, NodeDeadError.
    """
    return _Move.apply(cls, tensor, place, operation)  # type: ignore[no-untyped-call]


def copied(cls: type[Any], tensor: Any, place: Place, operation: str) -> Any:
    """As ``moved``, below autograd. From node to node nothing waits, and the values do not pass through the master."""
    here = place_of(tensor)
    if place.session is None:
        return values_of(tensor, operation)
    if here.session is not place.session:
        between = None if here.session is None else between_of(here.session, place.session)
        if between is not None:
            tensor = _copied_between(cls, tensor, place.session, between, operation)
        else:  # from the master, or from a node of another connection
            tensor = send(cls, place.session, tensor if here.session is None else values_of(tensor, operation))
    if spec_of(tensor._spec).device == place.device:
        return tensor
    return torch.ops.aten._to_copy.default(tensor, device=torch.device(place.device))


def _copied_between(cls: type[Any], tensor: Any, target: Session, between: Between, operation: str) -> Any:
    spec, id_ = arrived_spec(spec_of(tensor._spec)), next_id()
    between.copy(tensor._session, tensor._id, target, id_, spec, operation)
    return make(cls, target, number_of(spec), id_)


class _Move(torch.autograd.Function):
    """A copy to another place; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, cls: type[Any], tensor: Any, place: Place, operation: str) -> Any:
        ctx.cls, ctx.back = cls, place_of(tensor)
        return copied(cls, tensor.detach(), place, operation)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        home = gradient if place_of(gradient) == ctx.back else moved(ctx.cls, gradient, ctx.back, "backward")
        return None, home, None, None
