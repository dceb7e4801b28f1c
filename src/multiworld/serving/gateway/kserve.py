"""KServe's v2 inference protocol: its requests and answers, in JSON and with its extension for binary tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .budget import Budget
from .dtypes import kserve_dtype, kserve_name
from .elements import Buffer, as_bytes, check_count, checked_shape, from_bytes, from_json
from .json_format import load_object
from .json_reading import num_bytes_read
from .json_writing import TensorWriter
from .refusal import Refusal
from .served import Payload

__all__ = ["HEADER_LENGTH", "Question", "answer_question", "parse_question"]

HEADER_LENGTH = "inference-header-content-length"
KINDS = ("tensor", "list", "dict")


@dataclass(frozen=True)
class Question:
    """One request, understood. ``wanted``: the outputs asked for, with whether each is to be binary; None: all."""

    payload: Payload
    id: str | None
    wanted: dict[str, bool] | None
    is_binary: bool


async def parse_question(
    body: bytearray, headers: Mapping[str, str], *, max_json_bytes: int, budget: Budget
) -> Question:
    """Return what a body asks. ``max_json_bytes``: of its part in JSON.

    One input is a tensor, several are a dict by their names, unless ``parameters.payload`` says ``"tensor"``,
    ``"list"`` or ``"dict"``. Whatever is wrong is a Refusal, ValueError or the like.
    """
    length = _header_length(body, headers)
    if length > max_json_bytes:
        raise Refusal(
            413, "ContentTooLargeError", f"the JSON is larger than the {max_json_bytes} bytes that are served"
        )
    request = await load_object(memoryview(body)[:length], budget)
    return await _question(request, body, length, budget)


async def answer_question(
    question: Question, payload: Payload, writer: TensorWriter, budget: Budget, *, model: str, version: str
) -> tuple[list[Buffer], int]:
    """Return the pieces of the answer's body, and the length of its JSON part if binary tensors follow, else 0."""
    outputs: list[dict[str, Any]] = []
    pieces: list[Buffer] = []
    for name, tensor, is_binary in _outputs(question, payload):
        entry: dict[str, Any] = {"name": name, "datatype": kserve_name(tensor.dtype), "shape": list(tensor.shape)}
        if is_binary:
            data = await budget.apart(tensor.nbytes, as_bytes, tensor)
            budget.take(len(data))
            entry["parameters"] = {"binary_data_size": len(data)}
            pieces.append(data)
        else:
            entry["data"] = await writer.write(tensor, is_flat=True)
        outputs.append(entry)
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": outputs}
    if question.id is not None:
        answer["id"] = question.id
    header = writer.dump(answer)
    return [*header, *pieces], sum(map(len, header)) if pieces else 0


async def _question(request: dict[str, Any], body: bytearray, length: int, budget: Budget) -> Question:
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or not inputs or not all(isinstance(each, dict) for each in inputs):
        raise _bad('"inputs" must be a list of tensors, at least one')
    check_count(len(inputs))
    named: dict[str, Tensor] = {}
    at = length
    for entry in inputs:
        name = entry.get("name")
        if not isinstance(name, str) or name in named:
            raise _bad(f"every input needs a name of its own, got {name!r:.80}")
        named[name], at = await _input(entry, name, body, at, budget)
    if at != len(body):
        raise _bad(f"the body is {len(body) - at} bytes longer than its header and its binary inputs")
    parameters = _parameters(request)
    request_id = request.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise _bad('"id" must be a string')
    wanted = _wanted(request.get("outputs"), bool(parameters.get("binary_data_output", False)))
    return Question(
        _payload(parameters.get("payload"), named), request_id, wanted, bool(parameters.get("binary_data_output"))
    )


def _outputs(question: Question, payload: Payload) -> list[tuple[str, Tensor, bool]]:
    if isinstance(payload, Tensor):
        named = {"output": payload}
    elif isinstance(payload, dict):
        named = payload
    else:
        named = {f"output-{index}": tensor for index, tensor in enumerate(payload)}
    if question.wanted is None:
        return [(name, tensor, question.is_binary) for name, tensor in named.items()]
    unknown = [name for name in question.wanted if name not in named]
    if unknown and not (len(named) == 1 and len(question.wanted) == 1):
        raise _bad(f"there is no output {unknown[0]!r:.80}; there are {', '.join(named)}")
    if unknown:  # the only one, by whatever name the client has for it
        return [(name, next(iter(named.values())), is_binary) for name, is_binary in question.wanted.items()]
    return [(name, named[name], is_binary) for name, is_binary in question.wanted.items()]


async def _input(entry: dict[str, Any], name: str, body: bytearray, at: int, budget: Budget) -> tuple[Tensor, int]:
    dtype, shape = kserve_dtype(entry.get("datatype")), checked_shape(entry.get("shape"))
    size = _parameters(entry).get("binary_data_size")
    if size is None:
        if "data" not in entry:
            raise _bad(f"input {name!r:.80} has neither data nor parameters.binary_data_size")
        data = entry["data"]
        name = f"input {name!r:.80}"
        return await budget.apart(num_bytes_read(data), from_json, data, dtype, shape, name=name), at
    wanted = math.prod(shape) * dtype.itemsize
    if type(size) is not int or size != wanted or at + size > len(body):
        raise _bad(
            f"input {name!r:.80}: shape {list(shape)} of {entry['datatype']} is {wanted} bytes, "
            f"binary_data_size is {size!r:.40}, and {len(body) - at} bytes are left"
        )
    return await budget.apart(size, from_bytes, body, dtype, shape, offset=at), at + size


def _header_length(body: bytearray, headers: Mapping[str, str]) -> int:
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return len(body)
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 0 < int(text) <= len(body):
        raise _bad(f"Inference-Header-Content-Length must lie between 1 and {len(body)}, got {text!r:.40}")
    return int(text)


def _wanted(outputs: Any, is_binary: bool) -> dict[str, bool] | None:
    if outputs is None or outputs == []:
        return None
    wanted: dict[str, bool] = {}
    if not isinstance(outputs, list):
        raise _bad('"outputs" must be a list')
    for entry in outputs:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _bad('each of "outputs" must be an object with a name')
        wanted[entry["name"]] = bool(_parameters(entry).get("binary_data", is_binary))
    return wanted


def _payload(kind: Any, named: dict[str, Tensor]) -> Payload:
    kind = kind or ("tensor" if len(named) == 1 else "dict")
    if kind not in KINDS or (kind == "tensor" and len(named) > 1):
        raise _bad(f"parameters.payload={kind!r:.40}: expected one of {', '.join(KINDS)}, 'tensor' for a single input")
    tensors = list(named.values())
    if kind == "tensor":
        return tensors[0]
    return tensors if kind == "list" else named


def _parameters(entry: dict[str, Any]) -> dict[str, Any]:
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise _bad('"parameters" must be an object')
    return parameters


def _bad(message: str) -> Refusal:
    return Refusal(400, "BadRequestError", message)
