"""Make the tensor that stands for one on a node: it has shape, strides and dtype, and no memory.

Its label in C++ is the CPU's also where it lives on a GPU of the node: backward, autocast and the choice of kernels are
then those of a local tensor, and a master without CUDA can drive nodes that have it.

Beside the keys of that label it has one more, ``DeferredInit``: PyTorch keeps it for others and uses it nowhere itself.
A few operators have a kernel for it (``above_autograd``); those that have none skip it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..protocol.elements import contiguous_strides
from ..protocol.specs import spec_of
from ..session.session import Session

LABEL: Final = torch.device("cpu")
KEY_NAME: Final = "DeferredInit"
_key = torch._C._parse_dispatch_key(KEY_NAME)
assert _key is not None, f"PyTorch {torch.__version__} has no dispatch key {KEY_NAME}"
KEY: Final = _key
KEYS: Final = torch._C.DispatchKeySet(KEY)
_library: Final = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]  # lasts as long as the kernels
_library.fallback(torch.library.fallthrough_kernel, KEY_NAME)  # type: ignore[no-untyped-call]
make_wrapper: Final = Tensor._make_wrapper_subclass
forbid_writes: Final = torch._C._set_throw_on_mutable_data_ptr
_layouts: Final[dict[int, tuple[Any, ...]]] = {}  # by the number of the spec


def make(cls: type[Any], session: Session, spec_number: int, id_: int) -> Any:
    """Return a new tensor of that class for an id of a node."""
    size, stride, offset, dtype, bits = layout_of(spec_number)
    if stride is None:  # PyTorch finds them itself, which is faster
        tensor = make_wrapper(cls, size, dtype=dtype, device=LABEL, _extra_dispatch_keys=KEYS)
    else:
        tensor = make_wrapper(cls, size, stride, offset, dtype=dtype, device=LABEL, _extra_dispatch_keys=KEYS)
    forbid_writes(tensor)  # PyTorch's C++ would write at address 0
    for set_bit in bits:
        set_bit(tensor, True)
    tensor._session, tensor._id, tensor._spec = session, id_, spec_number
    return tensor


def layout_of(spec_number: int) -> tuple[Any, ...]:
    """Return size, strides or None, offset, dtype, and what sets the bits that it has."""
    layout = _layouts.get(spec_number)
    if layout is None:
        size, stride, offset, dtype, _, conj, neg = spec_of(spec_number)
        is_contiguous = offset == 0 and stride == contiguous_strides(size)
        bits = ([torch._C._set_conj] if conj else []) + ([torch._C._set_neg] if neg else [])
        layout = _layouts[spec_number] = (size, None if is_contiguous else stride, offset or None, dtype, tuple(bits))
    return layout
