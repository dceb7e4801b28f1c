"""``x.to(...)`` of a remote tensor: to a node, to the master, to a GPU of its node, or to another dtype."""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError
from ..protocol.template import Keywords
from ..session.open_connections import session_of
from ..session.session import Session
from .foreseeing import meta_of
from .moving import MASTER, Place, moved, place_of
from .naming import DeviceName, check_in_use, node_of

_BY_LABEL: Final = ("torch.optim.", "torch.nn.utils.clip_grad")
"""Modules of PyTorch that take the device from C++, where it is the label: they mean the place where the tensor is."""


def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Raises ConnectError for an unknown node, DeviceNameError, UnsupportedOperationError for another device."""
    other = kwargs.pop("other", None)
    if args and isinstance(args[0], Tensor):
        other, args = args[0], args[1:]
    if other is not None:
        args = (other.device, other.dtype, *args)
    copy = bool(kwargs.pop("copy", False))
    places = 2 if args and type(args[0]) is torch.dtype else 3
    if len(args) > places:
        args, copy = args[:places], bool(args[places])
    check_in_use(args[0] if args else kwargs.get("device"))
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None and device.type == "meta":
        return meta_of(tensor.spec).to(dtype or tensor.dtype)
    place = None if device is None or _is_by_label(device) else target(tensor, device)
    if place is None or place == place_of(tensor):
        options: Keywords = {"non_blocking": non_blocking, "copy": copy, "memory_format": memory_format}
        return Tensor.to(tensor, dtype=dtype or tensor.dtype, **options)
    if dtype is not None:
        tensor = Tensor.to(tensor, dtype=dtype)
    there = moved(type(tensor), tensor, place)
    return there if memory_format is None else there.contiguous(memory_format=memory_format)


def target(tensor: Any, device: torch.device) -> Place | None:
    """Return the place that a device means for a remote tensor; None: the place where it is."""
    session: Session = tensor._session
    number = node_of(device)
    if number is not None:
        return None if number == session.number and session.dead is None else Place(session_of(number))
    if device.type == "cpu":
        return MASTER if DeviceName.in_use else None
    if device.type == "cuda":
        return Place(session, f"cuda:{device.index or 0}")
    raise UnsupportedOperationError(
        f"to({str(device)!r})", f"the tensor is on node {session.number}", "Call fetch() first"
    )


def _is_by_label(device: torch.device) -> bool:
    """Whether PyTorch's own code asks for the label of a group of tensors."""
    return device.type == "cpu" and str(sys._getframe(2).f_globals.get("__name__", "")).startswith(_BY_LABEL)
