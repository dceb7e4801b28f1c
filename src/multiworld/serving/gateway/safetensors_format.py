"""Bodies in the safetensors format: any payload, every type of elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import safetensors
from safetensors.torch import save
from torch import Tensor

from .dtypes import DTYPES
from .elements import Buffer, check_count, checked_shape, from_bytes, on_host
from .refusal import Refusal
from .served import Payload

__all__ = ["decode", "encode"]

KIND = "payload"
"""The key of the file's metadata that says what the tensors are together: ``tensor``, ``list`` or ``dict``."""
INPUT, OUTPUT = "input", "output"
MAX_HEADER_BYTES = 1 << 20
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


def decode(body: bytearray, headers: Mapping[str, str]) -> Payload:
    """Return the payload: what its metadata says; else, a tensor if its only one is called ``input``; else a dict."""
    length = int.from_bytes(body[:8], "little")
    if MAX_HEADER_BYTES < length < len(body):
        raise Refusal(
            413,
            "ContentTooLargeError",
            f"the safetensors header has {length} bytes; {MAX_HEADER_BYTES} are served",
        )
    try:
        found = safetensors.deserialize(bytes(body))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise Refusal(400, "BadRequestError", f"the body is no safetensors file: {error!s:.200}") from None
    check_count(len(found))
    tensors = {name: _tensor(name, entry) for name, entry in found}
    if not tensors:
        raise Refusal(400, "BadRequestError", "the safetensors file has no tensors")
    metadata = orjson.loads(memoryview(body)[8 : 8 + length]).get("__metadata__") or {}
    default = "tensor" if list(tensors) == [INPUT] else "dict"
    return _payload(metadata.get(KIND, default), tensors)


def encode(payload: Payload) -> tuple[list[Buffer], dict[str, str]]:
    """Write any payload: a tensor as ``output``, a list as ``0``, ``1`` …"""
    if isinstance(payload, Tensor):
        kind, named = "tensor", {OUTPUT: payload}
    elif isinstance(payload, dict):
        kind, named = "dict", payload
    else:
        kind, named = "list", {str(index): tensor for index, tensor in enumerate(payload)}
    try:  # a copy of those that share memory, which the format cannot express
        tensors = _apart({name: on_host(tensor) for name, tensor in named.items()})
        return [save(tensors, {KIND: kind})], {}
    except (ValueError, KeyError) as error:
        raise Refusal(406, "NotAcceptableError", f"safetensors cannot hold the answer: {error!s:.200}") from None


def _tensor(name: str, entry: Mapping[str, Any]) -> Tensor:
    dtype = TYPES.get(entry["dtype"])
    if dtype is None:
        raise Refusal(400, "BadRequestError", f"tensor {name!r:.80} has type {entry['dtype']}, which is not served")
    return from_bytes(entry["data"], DTYPES[dtype], checked_shape(list(entry["shape"])))


def _payload(kind: str, tensors: dict[str, Tensor]) -> Payload:
    if kind == "tensor" and len(tensors) == 1:
        return next(iter(tensors.values()))
    if kind == "list" and set(tensors) == {str(index) for index in range(len(tensors))}:
        return [tensors[str(index)] for index in range(len(tensors))]
    if kind == "dict":
        return tensors
    raise Refusal(
        400,
        "BadRequestError",
        f"the metadata says {KIND}={kind!r:.40}, which {len(tensors)} tensors of these names are not",
    )


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart
