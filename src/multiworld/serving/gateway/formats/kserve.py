"""KServe's v2 inference protocol: its requests and answers, in JSON and with its extension for binary tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ....model.signature import KINDS, Signature, TensorSpec, named_tensors
from ..error_body import HttpError
from ..http.budget import Budget
from ..served import Payload
from .dtypes import DTYPES, KSERVE_NAMES, kserve_dtype, kserve_name
from .elements import Buffer, as_bytes, check_count, checked_shape, from_bytes, from_json
from .json_format import load_object
from .json_reading import num_bytes_read
from .json_writing import TensorWriter

HEADER_LENGTH = "inference-header-content-length"
NOTHING = (None, False, 0, "")
"""Values of parameters that ask for nothing: clients send them, too."""
MAX_TIMEOUT_US = 7 * 24 * 3600 * 10**6
NOT_SERVED = {
    "priority": "requests are taken in the order in which they come",
    "sequence_id": "to send requests that belong together to the same replicas, give X-Routing-Key",
    "sequence_start": "to send requests that belong together to the same replicas, give X-Routing-Key",
    "sequence_end": "to send requests that belong together to the same replicas, give X-Routing-Key",
    "classification": "ask for the tensor, and take its largest elements",
    **dict.fromkeys(
        ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"),
        "there is no shared memory with clients; send binary_data_size, and ask for binary_data",
    ),
}
"""Parameters that others serve, and what to do instead."""


@dataclass(frozen=True)
class Question:
    """One request, understood. ``wanted``: the outputs asked for, with whether each is to be binary; None: all."""

    payload: Payload
    id: str | None
    wanted: dict[str, bool] | None
    is_binary: bool
    timeout_s: float | None = None
    """How long the answer is of use; None: the request does not say."""


async def parse_question(
    body: bytearray,
    headers: Mapping[str, str],
    *,
    max_json_bytes: int,
    budget: Budget,
    signature: Signature | None = None,
) -> Question:
    """Return what a body asks. ``max_json_bytes``: of its part in JSON; ``signature``: of the model.

    The inputs become what the signature says, with its names; without one, a single input is a tensor, and several are
    a dict by their names. ``parameters.payload`` may say otherwise: ``"tensor"``, ``"list"`` or ``"dict"``. Parameters
    that are not served are refused. Any fault is an HttpError, ValueError or the like.
    """
    length = _header_length(body, headers)
    if length > max_json_bytes:
        raise HttpError(413, f"the JSON is larger than the {max_json_bytes} bytes that are served")
    request = await load_object(memoryview(body)[:length], budget)
    return await _question(request, body, length, budget, signature or Signature(takes=None))


async def answer_question(
    question: Question,
    payload: Payload,
    writer: TensorWriter,
    budget: Budget,
    *,
    model: str,
    version: str,
    signature: Signature | None = None,
) -> tuple[list[Buffer], int]:
    """Return the pieces of the answer's body, and the length of its JSON part if binary tensors follow, else 0."""
    outputs: list[Mapping[str, object]] = []
    pieces: list[Buffer] = []
    names = [] if signature is None else [spec.name for spec in signature.outputs]
    for name, tensor, is_binary in _outputs(question, named_tensors(payload, "output", names)):
        entry: dict[str, object] = {"name": name, "datatype": kserve_name(tensor.dtype), "shape": list(tensor.shape)}
        if is_binary:
            data = await budget.apart(tensor.nbytes, as_bytes, tensor)
            budget.take(len(data))
            entry["parameters"] = {"binary_data_size": len(data)}
            pieces.append(data)
        else:
            entry["data"] = await writer.write(tensor, is_flat=True)
        outputs.append(entry)
    answer: dict[str, object] = {"model_name": model, "model_version": version, "outputs": outputs}
    if question.id is not None:
        answer["id"] = question.id
    header = writer.dump(answer)
    return [*header, *pieces], sum(map(len, header)) if pieces else 0


def model_metadata(signature: Signature | None) -> Mapping[str, Sequence[Mapping[str, object]]]:
    """Return the inputs and outputs, as far as they are known and the protocol can name their types."""
    known = signature or Signature(takes=None)
    return {"inputs": _metadata(known.inputs), "outputs": _metadata(known.outputs)}


def _metadata(specs: tuple[TensorSpec, ...]) -> Sequence[Mapping[str, object]]:
    datatypes = [KSERVE_NAMES.get(DTYPES[spec.dtype]) if spec.dtype in DTYPES else None for spec in specs]
    if None in datatypes:
        return []
    return [
        {"name": spec.name, "datatype": datatype, "shape": list(spec.shape)}
        for spec, datatype in zip(specs, datatypes, strict=True)
    ]


async def _question(
    request: Mapping[str, object], body: bytearray, length: int, budget: Budget, signature: Signature
) -> Question:
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or not inputs or not all(isinstance(each, dict) for each in inputs):
        raise HttpError(400, '"inputs" must be a list of tensors, at least one')
    check_count(len(inputs))
    named: dict[str, Tensor] = {}
    at = length
    for entry in inputs:
        name = entry.get("name")
        if not isinstance(name, str) or name in named:
            raise HttpError(400, f"every input needs a name of its own, got {name!r:.80}")
        named[name], at = await _input(entry, name, body, at, budget)
    if at != len(body):
        raise HttpError(400, f"the body is {len(body) - at} bytes longer than its header and its binary inputs")
    parameters = _parameters(request, "the request", ("binary_data_output", "content_type", "payload", "timeout"))
    request_id = request.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise HttpError(400, '"id" must be a string')
    is_binary = _flag(parameters, "binary_data_output", default=False)
    return Question(
        _payload(parameters.get("payload"), named, signature),
        request_id,
        _wanted(request.get("outputs"), is_binary),
        is_binary,
        _timeout_s(parameters.get("timeout")),
    )


def _outputs(question: Question, named: dict[str, Tensor]) -> list[tuple[str, Tensor, bool]]:
    if question.wanted is None:
        return [(name, tensor, question.is_binary) for name, tensor in named.items()]
    unknown = [name for name in question.wanted if name not in named]
    if unknown and not (len(named) == 1 and len(question.wanted) == 1):
        raise HttpError(400, f"there is no output {unknown[0]!r:.80}; there are {', '.join(named)}")
    if unknown:  # the only one, by whatever name the client has for it
        return [(name, next(iter(named.values())), is_binary) for name, is_binary in question.wanted.items()]
    return [(name, named[name], is_binary) for name, is_binary in question.wanted.items()]


async def _input(
    entry: Mapping[str, object], name: str, body: bytearray, at: int, budget: Budget
) -> tuple[Tensor, int]:
    dtype, shape = kserve_dtype(entry.get("datatype")), checked_shape(entry.get("shape"))
    size = _parameters(entry, f"input {name!r:.80}", ("binary_data_size", "content_type")).get("binary_data_size")
    if size is None:
        if "data" not in entry:
            raise HttpError(400, f"input {name!r:.80} has neither data nor parameters.binary_data_size")
        data = entry["data"]
        name = f"input {name!r:.80}"
        return await budget.apart(num_bytes_read(data), from_json, data, dtype, shape, name=name), at
    if "data" in entry:
        raise HttpError(400, f"input {name!r:.80} has both data and parameters.binary_data_size")
    wanted = math.prod(shape) * dtype.itemsize
    if type(size) is not int or size != wanted or at + size > len(body):
        raise HttpError(
            400,
            f"input {name!r:.80}: shape {list(shape)} of {entry['datatype']} is {wanted} bytes, "
            f"binary_data_size is {size!r:.40}, and {len(body) - at} bytes are left",
        )
    return await budget.apart(size, from_bytes, body, dtype, shape, offset=at), at + size


def _header_length(body: bytearray, headers: Mapping[str, str]) -> int:
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return len(body)
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 0 < int(text) <= len(body):
        raise HttpError(400, f"Inference-Header-Content-Length must lie between 1 and {len(body)}, got {text!r:.40}")
    return int(text)


def _wanted(outputs: object, is_binary: bool) -> dict[str, bool] | None:
    if outputs is None or outputs == []:
        return None
    wanted: dict[str, bool] = {}
    if not isinstance(outputs, list):
        raise HttpError(400, '"outputs" must be a list')
    for entry in outputs:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise HttpError(400, 'each of "outputs" must be an object with a name')
        what = f"output {entry['name']!r:.80}"
        wanted[entry["name"]] = _flag(_parameters(entry, what, ("binary_data",)), "binary_data", default=is_binary)
    return wanted


def _payload(kind: object, named: dict[str, Tensor], signature: Signature) -> Payload:
    """Return what the model is called with."""
    if kind is None or kind == "":
        kind = signature.takes or ("tensor" if len(named) == 1 else "dict")
        if kind != "tensor" and signature.inputs:
            named = _ordered(named, signature)
        elif kind == "tensor" and len(named) > 1:
            raise HttpError(400, f"the model takes one input, and the request has {len(named)}: {_listed(named)}")
    elif kind not in KINDS or (kind == "tensor" and len(named) > 1):
        raise HttpError(
            400, f"parameters.payload={kind!r:.40}: expected one of {', '.join(KINDS)}, 'tensor' for a single input"
        )
    tensors = list(named.values())
    if kind == "tensor":
        return tensors[0]
    return tensors if kind == "list" else named


def _ordered(named: dict[str, Tensor], signature: Signature) -> dict[str, Tensor]:
    """Return the inputs in the order of the model's; refused: others than these, and without those that it needs."""
    specs = signature.inputs
    given = [spec.name for spec in specs if spec.name in named]
    more = [name for name in named if name not in given]
    missing = [spec.name for spec in specs if spec.name not in named and not spec.optional]
    if signature.takes == "list":  # the work counts them
        missing += [spec.name for spec, name in zip(specs, given, strict=False) if spec.name != name]
    if missing or (more and not signature.is_open):
        has_unknown = more and not signature.is_open
        problem = f"there is no input {more[0]!r:.80}" if has_unknown else f"input {missing[0]!r:.80} is missing"
        raise HttpError(400, f"{problem}; the model takes {_taken(signature)}")
    return {name: named[name] for name in (*given, *more)}


def _taken(signature: Signature) -> str:
    """Return its inputs, as words."""
    needed = [spec.name for spec in signature.inputs if not spec.optional]
    optional = [spec.name for spec in signature.inputs if spec.optional]
    maybe = f"maybe {_listed(optional)}" if optional else ""
    return " and ".join(filter(None, [_listed(needed), maybe]))


def _listed(names: Collection[str]) -> str:
    return f"{', '.join(names):.400}"


def _timeout_s(value: object) -> float | None:
    """Return a time limit, which the protocol counts in microseconds."""
    if value in NOTHING and value is not False:
        return None
    if type(value) is not int or not 0 < value <= MAX_TIMEOUT_US:
        raise HttpError(400, f"parameters.timeout must be microseconds from 0 to {MAX_TIMEOUT_US}, got {value!r:.40}")
    return value / 1e6


def _flag(parameters: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise HttpError(400, f"parameters.{name} must be true or false, got {value!r:.40}")
    return value


def _parameters(entry: Mapping[str, object], what: str, served: Collection[str]) -> Mapping[str, object]:
    """Return those that are given, and not null; refused: those that are not served here."""
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise HttpError(400, '"parameters" must be an object')
    given = {name: value for name, value in parameters.items() if value is not None}
    for name, value in given.items():
        if name == "content_type" and name in served:
            if value != "np":  # of clients of MLServer: numbers in order, which is what is read anyway
                raise HttpError(400, f"{what}: parameters.content_type={value!r:.40} is not served; 'np' is")
        elif name not in served and not (
            name in NOT_SERVED and not isinstance(value, (dict, list)) and value in NOTHING
        ):
            instead = NOT_SERVED.get(name, f"here may be {', '.join(served)}")
            raise HttpError(400, f"{what}: parameters.{name:.80} is not served; {instead}")
    return given
