"""Operators that no remote tensor can be an operand of: the error names the operator and the way out."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError

_PADDED: Final = "Give the module the padded batch, and leave out what lies behind each end with a mask"
_LAYOUT: Final = ("its result is sparse, which can't be on a node", "fetch() the tensor, and call it here")
_REFUSED: Final = {
    "aten::_pack_padded_sequence": ("a packed sequence needs its lengths on the master", _PADDED),
    "aten::_pad_packed_sequence": ("a packed sequence needs its lengths on the master", _PADDED),
}
_NESTED: Final = (
    "nested tensors can't be on a node",
    "Make the module with nn.TransformerEncoder(..., enable_nested_tensor=False)",
)
_QUANTIZED: Final = ("its result is quantized, which can't be on a node", "fetch() the tensor, and call it here")
_SPARSE: Final = "Make the module with sparse=False, or fetch() the operands and call it here"


def check_operator(func: Any) -> None:
    """Raises UnsupportedOperationError."""
    name = func._schema.name
    why = _LAYOUT if name.startswith("aten::_to_sparse") else _REFUSED.get(name)
    if why is None and "nested" in name and any("Tensor" in str(each.type) for each in func._schema.returns):
        why = _NESTED
    if name.startswith("aten::quantize_per_"):
        why = _QUANTIZED
    if why is not None:
        raise UnsupportedOperationError(str(func), *why)


def check_result(func: Any, tensor: Tensor | None) -> None:
    """Raises UnsupportedOperationError for a result that has no strides: remote tensors are described by them."""
    if tensor is not None and tensor.layout is not torch.strided:
        raise UnsupportedOperationError(str(func), f"its result is {tensor.layout}, which can't be on a node", _SPARSE)


def check_generator(func: Any, generator: torch.Generator) -> None:
    """Raises UnsupportedOperationError for a generator of the user's: its state is here, and the node draws."""
    if generator._cdata != torch.default_generator._cdata:  # type: ignore[attr-defined]
        raise UnsupportedOperationError(
            str(func),
            "a torch.Generator of the master can't draw on a node",
            "Leave generator= out: nodes[1].manual_seed(seed) seeds the node. Or draw here, and send the numbers",
        )
