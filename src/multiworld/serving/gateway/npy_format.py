"""Bodies in NumPy's ``.npy`` format, versions 1 and 2: one tensor. Nothing that needs pickle is read."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from .elements import Buffer, as_bytes, checked_shape, on_host
from .raw_format import single
from .refusal import Refusal
from .served import Payload

__all__ = ["decode", "encode"]

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
KINDS = "biufc"
MAX_HEADER_BYTES = 10_000  # beyond the longest that numpy writes for numbers


def decode(body: bytearray, headers: Mapping[str, str]) -> Tensor:
    """Return the tensor, which shares the body's memory if its byte order is this machine's."""
    stream = io.BytesIO(memoryview(body)[:MAX_HEADER_BYTES])
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise Refusal(400, "BadRequestError", f".npy of version {version[0]}.{version[1]} is not read; 1.0 and 2.0 are")
    shape, is_fortran, dtype = HEADERS[version](stream, max_header_size=MAX_HEADER_BYTES)
    if dtype.hasobject:
        raise Refusal(400, "BadRequestError", "the .npy holds Python objects: it would have to be unpickled")
    if dtype.kind not in KINDS or dtype.itemsize > 16:
        raise Refusal(400, "BadRequestError", f"the .npy has elements of type {dtype}, which no tensor has")
    shape = checked_shape(shape)
    size, offset = math.prod(shape), stream.tell()
    if len(body) - offset != size * dtype.itemsize:
        raise Refusal(
            400,
            "BadRequestError",
            f"the .npy is cut or too long: shape {list(shape)} of {dtype} is {size * dtype.itemsize} bytes, "
            f"not {len(body) - offset}",
        )
    if dtype == np.bool_:
        array = np.frombuffer(body, np.uint8, size, offset) != 0
    else:
        array = np.frombuffer(body, dtype, size, offset)
    array = array.reshape(shape, order="F" if is_fortran else "C")
    return torch.from_numpy(np.require(array, dtype.newbyteorder("="), "CAW"))


def encode(payload: Payload) -> tuple[list[Buffer], dict[str, str]]:
    """Write a payload of one tensor, of a type that NumPy has."""
    tensor = on_host(single(payload, "a .npy"))
    if tensor.dtype == torch.bfloat16 or (tensor.is_floating_point() and tensor.dtype.itemsize == 1):
        raise Refusal(
            406,
            "NotAcceptableError",
            f"the answer has elements of type {tensor.dtype}, which .npy has not: ask for application/safetensors",
        )
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(tensor.numpy()))
    return [header.getvalue(), as_bytes(tensor)], {}
