"""Bodies in the safetensors format: any payload, every type of elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from torch import Tensor

from ..error_body import HttpError
from ..http.budget import Budget
from ..served import Payload
from .dtypes import DTYPES, dtype_name
from .elements import Buffer, as_bytes, check_count, checked_shape, from_bytes
from .json_reading import parsed

KIND = "payload"
"""The key of the file's metadata that says what the tensors are together: ``tensor``, ``list`` or ``dict``."""
INPUT, OUTPUT = "input", "output"
METADATA = "__metadata__"
MAX_HEADER_BYTES = 1 << 20
VALUES_EACH = 64
"""Of a header, per object in it: a shape has up to 32."""
ALIGNMENT = 8
TYPES = {
    "BOOL": "bool",
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}

NAMES = {name: kind for kind, name in TYPES.items()}


async def decode(body: bytearray, headers: Mapping[str, str], budget: Budget) -> Payload:
    """Return the payload: what its metadata says; else, a tensor if its only one is called ``input``; else a dict.

    The tensors share the body's memory, where their types allow it.
    """
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise _bad("it is shorter than its header says")
    if length > MAX_HEADER_BYTES:
        raise HttpError(413, f"the safetensors header has {length} bytes; {MAX_HEADER_BYTES} are served")
    header = memoryview(body)[8 : 8 + length]
    num_objects = bytes(header).count(b"{")
    check_count(max(0, num_objects - 2))  # two are not tensors: the header itself, and the metadata
    if num_objects and bytes(header).count(b",") > VALUES_EACH * num_objects:
        raise _bad("its header has more values than tensors need")
    entries = parsed(header)
    if not isinstance(entries, dict):
        raise _bad("its header is no object")
    metadata = entries.pop(METADATA, None) or {}
    if not entries:
        raise HttpError(400, "the safetensors file has no tensors")
    tensors, end = {}, 0
    for name, entry in sorted(entries.items(), key=_place):
        tensors[name], end = await _tensor(name, entry, body, 8 + length, end, budget)
    if 8 + length + end != len(body):
        raise _bad(f"{len(body) - 8 - length - end} bytes at its end belong to no tensor")
    kind = metadata.get(KIND) if isinstance(metadata, dict) else None
    return _payload(
        kind or ("tensor" if list(tensors) == [INPUT] else "dict"), {name: tensors[name] for name in entries}
    )


async def encode(payload: Payload, budget: Budget) -> tuple[list[Buffer], dict[str, str]]:
    """Write any payload: a tensor as ``output``, a list as ``0``, ``1`` …"""
    if isinstance(payload, Tensor):
        kind, named = "tensor", {OUTPUT: payload}
    elif isinstance(payload, dict):
        kind, named = "dict", payload
    else:
        kind, named = "list", {str(index): tensor for index, tensor in enumerate(payload)}
    if METADATA in named:
        raise HttpError(406, f"safetensors cannot hold a tensor of the name {METADATA}")
    header: dict[str, Mapping[str, object]] = {METADATA: {KIND: kind}}
    pieces: list[Buffer] = []
    end = 0
    for name, tensor in sorted(named.items(), key=lambda item: -item[1].dtype.itemsize):  # so that each is aligned
        dtype = NAMES.get(dtype_name(tensor.dtype))
        if dtype is None:
            raise HttpError(406, f"safetensors cannot hold elements of type {tensor.dtype}")
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        pieces.append(await budget.apart(tensor.nbytes, as_bytes, tensor))
    text = orjson.dumps(header)
    text += b" " * (-len(text) % ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *pieces], {}


async def _tensor(name: str, entry: Any, body: bytearray, base: int, end: int, budget: Budget) -> tuple[Tensor, int]:
    """Return a tensor and where it ends; ``end``: where the one before it ended."""
    dtype = TYPES.get(entry["dtype"])
    if dtype is None:
        raise HttpError(400, f"tensor {name!r:.80} has type {entry['dtype']!r:.20}, which is not served")
    shape, offsets = checked_shape(entry["shape"]), entry["data_offsets"]
    size = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets != [end, end + size] or base + end + size > len(body):
        raise _bad(
            f"tensor {name!r:.80} of shape {list(shape)} takes {size} bytes from {end}, "
            f"not those of data_offsets {offsets!r:.60}"
        )
    tensor = await budget.apart(size, from_bytes, body, DTYPES[dtype], shape, offset=base + end)
    return tensor, end + size


def _place(item: tuple[str, Any]) -> tuple[int, int]:
    begin, end = item[1]["data_offsets"]
    if type(begin) is not int or type(end) is not int:
        raise _bad(f"tensor {item[0]!r:.80} has data_offsets that are no numbers")
    return begin, end


def _bad(message: str) -> HttpError:
    return HttpError(400, f"the body is no safetensors file: {message}")


def _payload(kind: str, tensors: dict[str, Tensor]) -> Payload:
    if kind == "tensor" and len(tensors) == 1:
        return next(iter(tensors.values()))
    if kind == "list" and set(tensors) == {str(index) for index in range(len(tensors))}:
        return [tensors[str(index)] for index in range(len(tensors))]
    if kind == "dict":
        return tensors
    raise HttpError(400, f"the metadata says {KIND}={kind!r:.40}, which {len(tensors)} tensors of these names are not")
