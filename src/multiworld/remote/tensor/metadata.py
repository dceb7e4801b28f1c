"""Give a remote tensor another shape, as ``t_`` or ``resize_`` do in place."""

from __future__ import annotations

from typing import Any

import torch

from ..protocol.specs import spec_of
from .wrapping import make


def take_spec(tensor: Any, number: int) -> None:
    """Let the same tensor have the spec of that number from now on."""
    if tensor._spec == number:
        return
    other = make(type(tensor), tensor._session, number, 0)
    del other._session  # it has no id of its own, which would be freed with it
    with torch.no_grad(), torch._C._DisableTorchDispatch():  # the assignment is no operation of the node's
        tensor.data = other
    tensor._spec = number
    assert tuple(tensor.shape) == spec_of(number).size
