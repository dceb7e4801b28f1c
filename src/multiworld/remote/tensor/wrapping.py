"""Make the tensor that stands for one on a node: it has shape, strides and dtype, and no memory.

Its label in C++ is the CPU's also where it lives on a GPU of the node: backward, autocast and the choice of kernels are
then those of a local tensor, and a master without CUDA can drive nodes that have it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..protocol.specs import spec_of
from ..session.session import Session

LABEL: Final = torch.device("cpu")
_make = Tensor._make_wrapper_subclass


def make(cls: type[Any], session: Session, spec_number: int, id_: int) -> Any:
    """Return a new tensor of that class for an id of a node."""
    size, stride, offset, dtype, _, conj, neg = spec_of(spec_number)
    tensor = _make(cls, size, stride, offset, dtype=dtype, device=LABEL)
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)
    tensor._session, tensor._id, tensor._spec = session, id_, spec_number
    return tensor
