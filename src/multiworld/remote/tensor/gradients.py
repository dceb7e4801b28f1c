"""Gradients that PyTorch's C++ makes on the master, as zeros for what has no derivative: they belong on the node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..protocol.specs import spec_of
from .moving import send
from .planned import create

_GRAD: Any = Tensor.grad
_get, _set = _GRAD.__get__, _GRAD.__set__
aten = torch.ops.aten


def gradient_on(beside: Any, gradient: Tensor) -> Any:
    """Return a gradient of the master where the remote tensor ``beside`` is. Zeros are made there: none travels."""
    session, device = beside._session, torch.device(spec_of(beside._spec).device)
    with torch.no_grad():
        if gradient.layout is torch.strided and not gradient.any():
            options = {"dtype": gradient.dtype, "device": device}
            return create(type(beside), session, aten.zeros.default, [list(gradient.shape)], options)
        there = send(type(beside), session, gradient)
        return there if device.type == "cpu" else aten._to_copy.default(there, device=device)


def grad_of(tensor: Any) -> Any:
    """Return ``tensor.grad``: on the node of the tensor, wherever PyTorch made it."""
    gradient = _get(tensor)
    if type(gradient) is Tensor:  # of the master
        gradient = gradient_on(tensor, gradient)
        _set(tensor, gradient)
    return gradient


def set_grad(tensor: Any, gradient: Tensor | None) -> None:
    _set(tensor, gradient)
