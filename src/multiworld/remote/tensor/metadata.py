"""Give a remote tensor another shape, as ``t_`` or ``resize_`` do in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..protocol.specs import spec_of
from .moving import values_of
from .wrapping import make


def take_spec(tensor: Any, number: int) -> None:
    """Let the same tensor have the spec of that number from now on."""
    if tensor._spec == number:
        return
    other = make(type(tensor), tensor._session, number, 0)
    del other._session  # it has no id of its own, which would be freed with it
    set_wrapper(tensor, other)
    tensor._spec = number
    assert tuple(tensor.shape) == spec_of(number).size


def set_data(tensor: Any, value: Any) -> None:
    """``tensor.data = value``: a value of the master makes it a tensor of the master, as ``Module.to("cpu")`` needs."""
    if type(value) is not type(tensor):
        gradient = tensor.grad
        tensor.grad = None  # PyTorch swaps no tensor that an accumulated gradient refers to
        plain: Tensor = value.detach()
        plain = torch.nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else plain
        torch.utils.swap_tensors(tensor, plain)  # type: ignore[no-untyped-call]
        if gradient is not None:
            tensor.grad = values_of(gradient, "data")
        return
    other: Any = value.detach()  # has an id of its own for the same memory
    set_wrapper(tensor, other)
    tensor._session, other._session = other._session, tensor._session
    tensor._id, other._id = other._id, tensor._id
    tensor._spec = other._spec


def set_wrapper(tensor: Any, other: Any) -> None:
    """Give a wrapper the shape and strides of another one."""
    with torch.no_grad(), torch._C._DisableTorchDispatch():  # the assignment is no operation of the node's
        Tensor.data.__set__(tensor, other)  # type: ignore[attr-defined]
