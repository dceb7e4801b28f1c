"""Devices of a node, such as its second GPU: the master knows where a tensor is, and needs no such device itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..protocol.specs import spec_of
from ..protocol.template import Keywords
from ..session.plainly import plainly
from ..session.session import Session
from .dispatch import dispatch
from .moving import send
from .naming import check_in_use
from .planned import create

CPU: Final = torch.device("cpu")
aten = torch.ops.aten


def device_of(device: int | str | torch.device | None) -> torch.device:
    """Return a device of a node: an int is the index of a GPU, -1 and None are its CPU.

    Raises ValueError, TypeError, DeviceNameError, and RuntimeError for the name of none.
    """
    if device is None or (type(device) is int and device == -1):
        return CPU
    if type(device) is int:
        if device < -1:
            raise ValueError(f"device={device}: expected the index of a GPU of the node, or -1 for its CPU")
        return torch.device("cuda", device)
    if isinstance(device, bool) or not isinstance(device, (str, torch.device)):
        raise TypeError(f"device={device!r}: expected the index of a GPU of the node, or a device")
    check_in_use(device)
    found = torch.device(device)
    return torch.device(found.type, 0) if found.index is None and found.type != "cpu" else found


def empty_on(cls: type[Any], session: Session, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
    """Return a tensor on a node whose values are not set. Raises NodeDeadError."""
    return create(cls, session, aten.empty.memory_format, [list(sizes)], {"dtype": dtype, "device": device})


def moved_to(tensor: Any, device: torch.device) -> Any:
    """Return the tensor on that device of its node: itself if it is there, else a copy that autograd follows."""
    if torch.device(spec_of(tensor._spec).device) == device:
        return tensor
    return _Moved.apply(tensor, device)  # type: ignore[no-untyped-call]


def new_tensor(like: Any, data: Any, dtype: torch.dtype | None, device: Any, options: Keywords) -> Any:
    """Return data as a tensor where ``like`` is, or on a device that is named, of the dtype of ``like`` if none is."""
    if device is not None:
        check_in_use(device)
        return torch.tensor(data, dtype=dtype or like.dtype, device=device, **options)
    gradient = bool(options.get("requires_grad"))
    there = send(type(like), like._session, plain_tensor(data, dtype or like.dtype))
    return moved_to(there, torch.device(spec_of(like._spec).device)).requires_grad_(gradient)


@plainly
def plain_tensor(values: Any, dtype: torch.dtype) -> Tensor:
    """Return a local tensor, also inside ``with nodes[1]:``."""
    return torch.tensor(values, dtype=dtype)


class _Moved(torch.autograd.Function):
    """PyTorch's own derivative of a copy takes the gradient to the label, which is the CPU's."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, device: torch.device) -> Any:
        ctx.came_from = torch.device(spec_of(tensor._spec).device)
        return _copied(tensor, device)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return moved_to(gradient, ctx.came_from), None


def _copied(tensor: Any, device: torch.device) -> Any:
    return dispatch(type(tensor), aten._to_copy.default, (), [tensor], {"device": device})
