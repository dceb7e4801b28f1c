"""The elements of tensors as bytes and as JSON, and back, without a bit changed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..error_body import HttpError
from ..served import Payload
from .dtypes import dtype_name
from .json_reading import MAX_DIMS, Numbers, as_array, check_rows, is_rounded

Buffer = bytes | bytearray | memoryview
COPIED_BYTES = 1 << 16  # up to here a copy costs less than keeping the tensor
MAX_DIM = 1 << 40
MAX_TENSORS = 4096
"""In one body: each takes some microseconds of the loop, and a kilobyte, however small it is."""


def on_host(tensor: Tensor) -> Tensor:
    """Return it contiguous, in the memory of this process, and without history."""
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.detach().cpu().resolve_neg().contiguous()


def as_bytes(tensor: Tensor) -> Buffer:
    """Return its elements, in the order and byte order of this machine (little-endian). A large one is not copied."""
    tensor = on_host(tensor)
    if tensor.numel() == 0:
        return b""
    array: npt.NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return array.tobytes() if array.nbytes <= COPIED_BYTES else array.data


def from_bytes(data: Buffer, dtype: torch.dtype, shape: tuple[int, ...], *, offset: int = 0) -> Tensor:
    """Return a tensor of those elements. It shares the memory of ``data``, which is a bytearray, if it is aligned."""
    size = math.prod(shape)
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    if offset % dtype.itemsize or not isinstance(data, bytearray):
        data, offset = bytearray(memoryview(data)[offset : offset + size * dtype.itemsize]), 0
    if dtype == torch.bool:  # any other byte than 0 and 1 is undefined behaviour in a bool
        return torch.frombuffer(data, dtype=torch.uint8, count=size, offset=offset).ne(0).reshape(shape)
    tensor = torch.frombuffer(data, dtype=dtype, count=size, offset=offset)
    return tensor if len(shape) == 1 else tensor.reshape(shape)


def checked_shape(shape: object) -> tuple[int, ...]:
    """Return a shape that came from outside, if a tensor may have it."""
    if isinstance(shape, Numbers):
        shape = shape.array.tolist()
    if not isinstance(shape, (list, tuple)) or not all(type(each) is int and 0 <= each < MAX_DIM for each in shape):
        raise HttpError(400, f"the shape must be a list of dimensions from 0, got {shape!r:.80}")
    if len(shape) > MAX_DIMS or math.prod(max(each, 1) for each in shape) >= MAX_DIM:
        raise HttpError(400, f"the shape {shape!r:.80} is too large")
    check_rows(tuple(shape))
    return tuple(shape)


def check_count(num_tensors: int) -> None:
    """Refuse a body of more tensors than one may have."""
    if num_tensors > MAX_TENSORS:
        raise HttpError(413, f"the body has {num_tensors} tensors; {MAX_TENSORS} are served")


def from_json(data: Any, dtype: torch.dtype | None, shape: Any, *, name: str) -> Tensor:
    """Return the tensor that nested lists of numbers mean; ``shape``: they may be flat, or must have it.

    Without a dtype: float32, int64 or bool, as the numbers are. Refused: ragged lists, other things than numbers, and
    numbers that the dtype cannot hold.
    """
    array, has_words = as_array(data, name)
    if dtype is None:
        if is_rounded(data, array):
            what = "integers below 0 and others from 2^63, which no type of integers holds together"
            raise HttpError(400, f"{name} has {what}; name a dtype, such as float64, to have them rounded")
        dtype = {"b": torch.bool, "i": torch.int64, "u": torch.uint64}.get(array.dtype.kind, torch.float32)
        if array.size == 0:
            dtype = torch.float32
    tensor = _converted(data, array, dtype, has_words, name)
    if shape is None:
        return tensor
    wanted = checked_shape(shape)
    size = tensor.numel()  # lists that are empty do not show the dimensions behind
    if math.prod(wanted) != size or (size and tensor.ndim > 1 and tuple(tensor.shape) != wanted):
        raise HttpError(400, f"{name} has shape {list(wanted)}, but data of {list(tensor.shape)}")
    return tensor.reshape(wanted)


def num_bytes_of(payload: Payload) -> int:
    """Return how much its elements take."""
    if isinstance(payload, Tensor):
        return payload.nbytes
    return sum(tensor.nbytes for tensor in (payload.values() if isinstance(payload, dict) else payload))


def check_finite(payload: Payload) -> None:
    """Refuse a payload with NaN or infinite elements."""
    named: list[tuple[str, Tensor]]
    if isinstance(payload, Tensor):
        named = [("the input", payload)]
    elif isinstance(payload, dict):
        named = [(f"input {name!r}", tensor) for name, tensor in payload.items()]
    else:
        named = [(f"input {index}", tensor) for index, tensor in enumerate(payload)]
    for name, tensor in named:
        if (tensor.is_floating_point() or tensor.is_complex()) and not _is_finite(tensor):
            raise HttpError(400, f"{name} has NaN or infinite elements, which are refused here")


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()  # few operations know the types of 8 bits
    return bool(torch.isfinite(tensor).all())


def _converted(data: Any, array: npt.NDArray[Any], dtype: torch.dtype, has_words: bool, name: str) -> Tensor:
    wrong = f"{name}: dtype {dtype_name(dtype)} cannot hold"
    if dtype.is_complex:
        raise HttpError(400, f"{wrong} numbers of JSON; send application/safetensors")
    if dtype.is_floating_point:
        tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)).to(dtype).reshape(array.shape)
        if not has_words and not _is_finite(tensor):
            raise HttpError(400, f"{wrong} a number that large; 'Infinity' means infinity")
        return tensor
    kept: npt.NDArray[Any] = np.empty(array.shape, dtype_name(dtype))  # numpy's own choice may be a type torch has not
    kept[...] = _whole(data, array, dtype, wrong)
    return torch.from_numpy(kept)


def _whole(data: Any, array: npt.NDArray[Any], dtype: torch.dtype, wrong: str) -> npt.NDArray[Any]:
    """Return an array whose elements fit a type of integers, or bool."""
    if not array.size:
        return array
    if dtype == torch.bool:
        if array.dtype.kind != "b":
            raise HttpError(400, f"{wrong} numbers: true and false")
        return array
    if array.dtype.kind == "f":  # also what numpy makes of integers that no type of its holds together
        if isinstance(data, Numbers):
            raise HttpError(400, f"{wrong} fractions, or such large numbers")
        array = np.array(data, dtype=object)
        if not all(type(each) is int for each in array.flat):
            raise HttpError(400, f"{wrong} fractions")
    bounds = torch.iinfo(dtype)
    if array.dtype.kind != "b" and not bounds.min <= int(array.min()) <= int(array.max()) <= bounds.max:
        raise HttpError(400, f"{wrong} numbers beyond {bounds.min} … {bounds.max}")
    return array
