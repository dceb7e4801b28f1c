"""Bodies in JSON: ``{"inputs": …}`` in, ``{"outputs": …}`` out."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import torch
from torch import Tensor

from ..error_body import HttpError
from ..http.budget import Budget
from ..served import Payload
from .dtypes import dtype_name, dtype_of
from .elements import Buffer, check_count, from_json
from .json_reading import load, num_bytes_read
from .json_writing import TensorWriter

KEYS = {"inputs", "dtype", "shape", "parameters"}
TENSOR_KEYS = {"data", "dtype", "shape"}


async def decode(body: bytearray, headers: Mapping[str, str], budget: Budget) -> Payload:
    """Return the payload of ``{"inputs": I, "dtype": D}``.

    ``I`` is nested lists of numbers (a tensor), ``{"name": T}`` (a dict) or ``[T]`` (a list), where ``T`` is nested
    lists or ``{"data": …, "dtype": …, "shape": …}``; the ``T`` of a list are always such objects. ``D`` is the dtype of
    all that have none of their own, or an object with one per name. Default: float32, int64, bool, as the numbers are.
    """
    request = await load_object(body, budget)
    if "inputs" not in request:
        raise HttpError(400, 'the body has no "inputs"')
    unknown = request.keys() - KEYS
    if unknown:
        raise HttpError(400, f"unknown keys in the body: {', '.join(sorted(unknown))[:120]}")
    inputs, dtype = request["inputs"], request.get("dtype")
    if isinstance(inputs, dict) and "data" in inputs and inputs.keys() <= TENSOR_KEYS:
        return await _tensor(inputs, dtype, "inputs", budget)
    if isinstance(inputs, dict):
        return await _dict(inputs, dtype, budget)
    if isinstance(inputs, list) and inputs and all(isinstance(each, dict) for each in inputs):
        check_count(len(inputs))
        return [await _tensor(each, dtype, f"input {index}", budget) for index, each in enumerate(inputs)]
    return await _read(inputs, None if dtype is None else dtype_of(dtype), request.get("shape"), "inputs", budget)


async def encode(payload: Payload, writer: TensorWriter) -> tuple[list[Buffer], dict[str, str]]:
    """Write any payload but complex numbers."""
    return writer.dump(await as_object(payload, writer)), {}


async def as_object(payload: Payload, writer: TensorWriter) -> Mapping[str, object]:
    """Return what JSON says of a payload."""
    if isinstance(payload, Tensor):
        entry = await _entry(payload, writer)
        return {"outputs": entry.pop("data"), **entry}
    if isinstance(payload, dict):
        return {"outputs": {name: await _entry(tensor, writer) for name, tensor in payload.items()}}
    return {"outputs": [await _entry(tensor, writer) for tensor in payload]}


async def load_object(body: bytearray | memoryview, budget: Budget) -> Mapping[str, object]:
    """Return the object that a body is; an HttpError for anything else."""
    try:
        value = await load(body, budget)
    except orjson.JSONDecodeError as error:
        raise HttpError(400, f"the body is not JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise HttpError(400, f"the body must be a JSON object, not {type(value).__name__}")
    return value


async def _dict(inputs: Mapping[str, object], dtype: object, budget: Budget) -> dict[str, Tensor]:
    if not inputs:
        raise HttpError(400, '"inputs" is empty')
    check_count(len(inputs))
    dtypes = dtype if isinstance(dtype, dict) else dict.fromkeys(inputs, dtype)
    unknown = dtypes.keys() - inputs.keys()
    if unknown:
        raise HttpError(400, f'"dtype" names what is not in "inputs": {", ".join(sorted(unknown))[:120]}')
    return {
        name: await _tensor(
            data if isinstance(data, dict) else {"data": data}, dtypes.get(name), f"input {name!r:.80}", budget
        )
        for name, data in inputs.items()
    }


async def _tensor(entry: Mapping[str, object], dtype: object, name: str, budget: Budget) -> Tensor:
    if "data" not in entry or not entry.keys() <= TENSOR_KEYS:
        raise HttpError(400, f"{name} must have data, and may have dtype and shape, and nothing else")
    dtype = entry.get("dtype", dtype)
    chosen: torch.dtype | None = None if dtype is None else dtype_of(dtype)
    return await _read(entry["data"], chosen, entry.get("shape"), name, budget)


async def _read(data: object, dtype: torch.dtype | None, shape: object, name: str, budget: Budget) -> Tensor:
    return await budget.apart(num_bytes_read(data), from_json, data, dtype, shape, name=name)


async def _entry(tensor: Tensor, writer: TensorWriter) -> dict[str, object]:
    return {"data": await writer.write(tensor), "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
