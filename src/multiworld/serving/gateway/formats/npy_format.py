"""Bodies in NumPy's ``.npy`` format, versions 1 and 2: one tensor. Nothing that needs pickle is read."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib import format as npy
from torch import Tensor

from ..error_body import HttpError
from ..http.budget import Budget
from ..served import Payload
from .elements import Buffer, as_bytes, checked_shape, on_host
from .raw_format import single

MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}
"""By version: of the header's length, after it."""
# The header is a literal of Python's. It is searched, not evaluated: nothing that a client writes is parsed as code.
DESCRIPTION = re.compile(r"""["']descr["']\s*:\s*["']([<>|=]?[A-Za-z?]\d{0,3})["']""")
ORDER = re.compile(r"""["']fortran_order["']\s*:\s*(True|False)""")
SHAPE = re.compile(r"""["']shape["']\s*:\s*\(([\dL,\s]*)\)""")
KINDS = "biufc"
MAX_HEADER_BYTES = 10_000  # beyond the longest that numpy writes for numbers


async def decode(body: bytearray, headers: Mapping[str, str], budget: Budget) -> Tensor:
    """Return the tensor, which shares the body's memory if its byte order is this machine's."""
    text, offset = _header(body)
    description, order, dims = (pattern.search(text) for pattern in (DESCRIPTION, ORDER, SHAPE))
    if description is None or order is None or dims is None:
        raise HttpError(400, "the .npy has no header, or elements that no tensor has")
    dtype, is_fortran = np.dtype(description[1]), order[1] == "True"
    if dtype.hasobject:
        raise HttpError(400, "the .npy holds Python objects: it would have to be unpickled")
    if dtype.kind not in KINDS or dtype.itemsize > 16:
        raise HttpError(400, f"the .npy has elements of type {dtype}, which no tensor has")
    shape = checked_shape([int(each) for each in dims[1].replace("L", "").split(",") if each.strip()])
    size = math.prod(shape)
    if len(body) - offset != size * dtype.itemsize:
        raise HttpError(
            400,
            f"the .npy is cut or too long: shape {list(shape)} of {dtype} is {size * dtype.itemsize} bytes, "
            f"not {len(body) - offset}",
        )
    return await budget.apart(len(body), _read, body, dtype, shape, offset, is_fortran=is_fortran)


async def encode(payload: Payload, budget: Budget) -> tuple[list[Buffer], dict[str, str]]:
    """Write a payload of one tensor, of a type that NumPy has."""
    tensor = single(payload, "a .npy")
    tensor = await budget.apart(tensor.nbytes, on_host, tensor)
    if tensor.dtype == torch.bfloat16 or (tensor.is_floating_point() and tensor.dtype.itemsize == 1):
        raise HttpError(
            406, f"the answer has elements of type {tensor.dtype}, which .npy has not: ask for application/safetensors"
        )
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(tensor.numpy()))
    return [header.getvalue(), as_bytes(tensor)], {}


def _read(body: bytearray, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, *, is_fortran: bool) -> Tensor:
    size = math.prod(shape)
    array: npt.NDArray[Any]
    if dtype == np.bool_:
        array = np.frombuffer(body, np.uint8, size, offset) != 0
    else:
        array = np.frombuffer(body, dtype, size, offset)
    array = array.reshape(shape, order="F" if is_fortran else "C")
    return torch.from_numpy(np.require(array, dtype.newbyteorder("="), ("C_CONTIGUOUS", "ALIGNED", "WRITEABLE")))


def _header(body: bytearray) -> tuple[str, int]:
    """Return the header's text, and where the elements begin."""
    size = LENGTH_BYTES.get(bytes(body[6:8]))
    if body[:6] != MAGIC or size is None:
        raise HttpError(400, "the body is no .npy of version 1.0 or 2.0")
    length = int.from_bytes(body[8 : 8 + size], "little")
    if length > MAX_HEADER_BYTES:
        raise HttpError(400, f"the .npy has a header of {length} bytes, which no tensor needs")
    end = 8 + size + length
    return body[8 + size : end].decode("latin-1"), end
