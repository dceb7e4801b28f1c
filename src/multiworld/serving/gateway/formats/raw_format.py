"""Bodies that are nothing but elements: shape and dtype stand in the head."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torch import Tensor

from ..error_body import HttpError
from ..http.budget import Budget
from ..served import Payload
from .dtypes import dtype_name, dtype_of
from .elements import Buffer, as_bytes, checked_shape, from_bytes

# No two blanks that may be left out are neighbours: in all the ways to share n of them out it would be searched.
SHAPE = re.compile(r"[\[(]?\s*(?:(\d{1,13}(?:\s*,\s*\d{1,13})*)\s*(?:,\s*)?)?[\])]?")
MAX_SHAPE_LENGTH = 1024
"""More than 32 dimensions take, written with blanks."""


async def decode(body: bytearray, headers: Mapping[str, str], budget: Budget) -> Tensor:
    """Return the tensor: ``X-Dtype: float32``, ``X-Shape: 2,3`` (default: one dimension; empty: a scalar)."""
    if "x-dtype" not in headers:
        raise HttpError(400, "a raw body needs the header X-Dtype, and X-Shape unless it is flat")
    dtype = dtype_of(headers["x-dtype"].strip())
    shape = _shape(headers["x-shape"]) if "x-shape" in headers else (len(body) // dtype.itemsize,)
    wanted = math.prod(shape) * dtype.itemsize
    if len(body) != wanted:
        raise HttpError(400, f"shape {list(shape)} of {dtype_name(dtype)} is {wanted} bytes, not {len(body)}")
    return await budget.apart(wanted, from_bytes, body, dtype, shape)


async def encode(payload: Payload, budget: Budget) -> tuple[list[Buffer], dict[str, str]]:
    """Write a payload of one tensor."""
    tensor = single(payload, "a raw body")
    shape = ",".join(map(str, tensor.shape))
    return [await budget.apart(tensor.nbytes, as_bytes, tensor)], {
        "x-shape": shape,
        "x-dtype": dtype_name(tensor.dtype),
    }


def single(payload: Payload, what: str) -> Tensor:
    """Return the only tensor of an answer; refused, if it has several, for a format that takes one."""
    if isinstance(payload, Tensor):
        return payload
    tensors = list(payload.values()) if isinstance(payload, dict) else payload
    if len(tensors) != 1:
        raise HttpError(
            406, f"the answer has {len(tensors)} tensors and {what} holds one: ask for application/safetensors, or JSON"
        )
    return tensors[0]


def _shape(text: str) -> tuple[int, ...]:
    match = SHAPE.fullmatch(text.strip()) if len(text) <= MAX_SHAPE_LENGTH else None
    if match is None:
        raise HttpError(400, f"X-Shape must be dimensions such as '2,3', got {text!r:.80}")
    return checked_shape([int(each) for each in (match[1] or "").split(",") if each.strip()])
