"""Typed factories of tensors on the current node: ``FloatTensor(20, 20)``, ``LongTensor([1, 2])``."""

from __future__ import annotations

from typing import Any, Final

import torch

from ...remote.tensor.devices import device_of, empty_on, moved_to, plain_tensor
from ...remote.tensor.remote_tensor import RemoteTensor
from .default import current_node


class TensorFactory:
    """Called with sizes it returns a tensor whose values are not set; with a list, a tensor of these values.

    ``device``: the index of a GPU of the node; None or -1: its CPU. It is taken at its word: on a node that has no such
    GPU the tensor fails lazily, with a RemoteOperationError at the first fetch that needs it.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name, self.dtype = name, dtype

    def __repr__(self) -> str:
        return f"multiworld.distributed.{self.name}"

    def __call__(self, *sizes_or_data: Any, device: int | str | torch.device | None = None) -> RemoteTensor:
        """Raises ConnectError, NodeDeadError; ValueError or TypeError for what is neither sizes nor data."""
        place = device_of(device)
        if len(sizes_or_data) == 1 and not isinstance(sizes_or_data[0], (int, torch.Size)):
            values = plain_tensor(sizes_or_data[0], self.dtype)
            return moved_to(current_node().send(values), place)  # type: ignore[no-any-return]
        sizes = tuple(sizes_or_data) or (0,)
        if isinstance(sizes[0], torch.Size):
            sizes = tuple(sizes[0])
        for size in sizes:
            if type(size) is not int or size < 0:
                raise ValueError(f"{self.name}{sizes}: expected sizes from 0, or one list of values")
        return empty_on(RemoteTensor, current_node().session(), sizes, self.dtype, place)  # type: ignore[no-any-return]


FloatTensor: Final = TensorFactory("FloatTensor", torch.float32)
DoubleTensor: Final = TensorFactory("DoubleTensor", torch.float64)
HalfTensor: Final = TensorFactory("HalfTensor", torch.float16)
BFloat16Tensor: Final = TensorFactory("BFloat16Tensor", torch.bfloat16)
ByteTensor: Final = TensorFactory("ByteTensor", torch.uint8)
CharTensor: Final = TensorFactory("CharTensor", torch.int8)
ShortTensor: Final = TensorFactory("ShortTensor", torch.int16)
IntTensor: Final = TensorFactory("IntTensor", torch.int32)
LongTensor: Final = TensorFactory("LongTensor", torch.int64)
BoolTensor: Final = TensorFactory("BoolTensor", torch.bool)
