"""Bodies in JSON: ``{"inputs": …}`` in, ``{"outputs": …}`` out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import torch
from torch import Tensor

from .dtypes import dtype_name, dtype_of
from .elements import Buffer, as_json, check_count, from_json
from .refusal import Refusal
from .served import Payload

__all__ = ["as_object", "decode", "dumps", "encode", "load_object"]

KEYS = {"inputs", "dtype", "shape", "parameters"}
TENSOR_KEYS = {"data", "dtype", "shape"}


def decode(body: bytearray, headers: Mapping[str, str]) -> Payload:
    """Return the payload of ``{"inputs": I, "dtype": D}``.

    ``I`` is nested lists of numbers (a tensor), ``{"name": T}`` (a dict) or ``[T]`` (a list), where ``T`` is nested
    lists or ``{"data": …, "dtype": …, "shape": …}``; the ``T`` of a list are always such objects. ``D`` is the dtype of
    all that have none of their own, or an object with one per name. Default: float32, int64, bool, as the numbers are.
    """
    request = load_object(body)
    if "inputs" not in request:
        raise Refusal(400, "BadRequestError", 'the body has no "inputs"')
    unknown = request.keys() - KEYS
    if unknown:
        raise Refusal(400, "BadRequestError", f"unknown keys in the body: {', '.join(sorted(unknown))[:120]}")
    inputs, dtype = request["inputs"], request.get("dtype")
    if isinstance(inputs, dict) and "data" in inputs and inputs.keys() <= TENSOR_KEYS:
        return _tensor(inputs, dtype, "inputs")
    if isinstance(inputs, dict):
        return _dict(inputs, dtype)
    if isinstance(inputs, list) and inputs and all(isinstance(each, dict) for each in inputs):
        check_count(len(inputs))
        return [_tensor(each, dtype, f"input {index}") for index, each in enumerate(inputs)]
    return from_json(inputs, None if dtype is None else dtype_of(dtype), request.get("shape"), name="inputs")


def encode(payload: Payload) -> tuple[list[Buffer], dict[str, str]]:
    """Write any payload but complex numbers."""
    return [dumps(as_object(payload))], {}


def as_object(payload: Payload) -> dict[str, Any]:
    """Return what JSON says of a payload."""
    if isinstance(payload, Tensor):
        entry = _entry(payload)
        return {"outputs": entry.pop("data"), **entry}
    if isinstance(payload, dict):
        return {"outputs": {name: _entry(tensor) for name, tensor in payload.items()}}
    return {"outputs": [_entry(tensor) for tensor in payload]}


def load_object(body: Buffer) -> dict[str, Any]:
    """Return the object that a body is; a Refusal for anything else."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "BadRequestError", f"the body is not JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise Refusal(400, "BadRequestError", f"the body must be a JSON object, not {type(value).__name__}")
    return value


def dumps(value: Any) -> bytes:
    """Return JSON; arrays with the fewest digits that give the same bits again."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _dict(inputs: dict[str, Any], dtype: Any) -> dict[str, Tensor]:
    if not inputs:
        raise Refusal(400, "BadRequestError", '"inputs" is empty')
    check_count(len(inputs))
    dtypes = dtype if isinstance(dtype, dict) else dict.fromkeys(inputs, dtype)
    unknown = dtypes.keys() - inputs.keys()
    if unknown:
        raise Refusal(
            400, "BadRequestError", f'"dtype" names what is not in "inputs": {", ".join(sorted(unknown))[:120]}'
        )
    return {
        name: _tensor(data if isinstance(data, dict) else {"data": data}, dtypes.get(name), f"input {name!r:.80}")
        for name, data in inputs.items()
    }


def _tensor(entry: dict[str, Any], dtype: Any, name: str) -> Tensor:
    if "data" not in entry or not entry.keys() <= TENSOR_KEYS:
        raise Refusal(400, "BadRequestError", f"{name} must have data, and may have dtype and shape, and nothing else")
    dtype = entry.get("dtype", dtype)
    chosen: torch.dtype | None = None if dtype is None else dtype_of(dtype)
    return from_json(entry["data"], chosen, entry.get("shape"), name=name)


def _entry(tensor: Tensor) -> dict[str, Any]:
    return {"data": as_json(tensor), "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
