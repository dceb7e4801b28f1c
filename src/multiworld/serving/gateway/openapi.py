"""What the gateway offers, as OpenAPI 3.1: written by hand, beside the routes that it tells of."""

from __future__ import annotations

from typing import Any

from .formats.dtypes import DTYPES, KSERVE
from .options import GatewayOptions

__all__ = ["describe"]

RAW, NPY, SAFE, JSON = ("application/octet-stream", "application/x-npy", "application/safetensors", "application/json")
BINARY_SCHEMA = {"type": "string", "format": "binary"}
NUMBERS = {
    "description": 'A number, true or false, or nested lists of one shape. "NaN", "Infinity" and "-Infinity" stand for '
    "what JSON has no numbers for.",
    "oneOf": [
        {"type": "number"},
        {"type": "boolean"},
        {"enum": ["NaN", "Infinity", "-Infinity"]},
        {"type": "array", "items": {"$ref": "#/components/schemas/Numbers"}},
    ],
}
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def describe(name: str, version: str, options: GatewayOptions, *, streams: bool) -> dict[str, Any]:
    """Return the document. ``streams``: whether there is /generate."""
    paths: dict[str, Any] = {"/infer": {"post": _infer()}}
    if streams:
        paths["/generate"] = {"post": _generate()}
    paths |= {
        "/healthz": {"get": _get("The gateway lives", {"live": True})},
        "/readyz": {"get": _get("Whether a request would be answered now", {"ready": True}, fails="Error")},
        "/status": {"get": _get("Stages, replicas, requests, latencies; and the gateway's own numbers", {})},
        "/metrics": {"get": _text("All metrics, for Prometheus", "text/plain")},
        "/v2/repository/index": {
            "post": _get("KServe v2: the models, one", {"name": name, "version": "1", "state": "READY", "reason": ""})
        },
        "/v2": {"get": _get("KServe v2: the server", {"name": "multiworld", "version": version})},
        "/v2/health/live": {"get": _get("KServe v2: the server lives", {"live": True})},
        "/v2/health/ready": {"get": _get("KServe v2: the server is ready", {"ready": True}, fails="KServeError")},
    }
    for prefix, parameters in (
        ("/v2/models/{name}", [_path("name", name)]),
        ("/v2/models/{name}/versions/{version}", [_path("name", name), _path("version", "1")]),
    ):
        paths[prefix] = {
            "parameters": parameters,
            "get": _get("KServe v2: the model", {"name": name}, is_of_model=True),
        }
        paths[f"{prefix}/ready"] = {
            "parameters": parameters,
            "get": _get(
                "KServe v2: the model is ready", {"name": name, "ready": True}, fails="KServeError", is_of_model=True
            ),
        }
        paths[f"{prefix}/infer"] = {"parameters": parameters, "post": _kserve_infer()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": name,
            "version": version,
            "summary": f"The pipeline {name!r}, served by multiworld",
            "description": f"Bodies may have {options.max_body_bytes:,} bytes, in JSON {options.max_json_bytes:,}. "
            f"NaN and infinite inputs: {options.nan_policy}.",
        },
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _infer() -> dict[str, Any]:
    return {
        "operationId": "infer",
        "summary": "Ask the pipeline",
        "description": "The answer has the format of the request, or that of the Accept header. Raw bodies are the "
        "elements alone, little-endian: X-Dtype and X-Shape say what they are.",
        "parameters": [
            *_asking(),
            _header("X-Dtype", "Of a raw body.", {"enum": list(DTYPES)}),
            _header("X-Shape", "Of a raw body: 2,3. Default: one dimension.", {"type": "string"}),
        ],
        "requestBody": _body(),
        "responses": {
            "200": {"description": "The answer.", "headers": _told(), "content": _formats("Answer")},
            **_failures(),
        },
    }


def _generate() -> dict[str, Any]:
    return {
        "operationId": "generate",
        "summary": "Ask the pipeline for a series of answers",
        "description": "Server-sent events: one per answer as it is there, then an event `done`, which tells in JSON "
        "what headers tell of other answers (`weights`, `finish_reason`), as far as it is known; or `error`.",
        "parameters": _asking(),
        "requestBody": _body(),
        "responses": {
            "200": {"description": "The answers.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **_failures(),
        },
    }


def _kserve_infer() -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": "#/components/schemas/KServeRequest"}}, RAW: {"schema": BINARY_SCHEMA}}
    return {
        "summary": "KServe v2: ask the model",
        "description": "In JSON, or with binary tensors after the JSON (Inference-Header-Content-Length). One input is "
        'a tensor, several are a dict by their names, unless parameters.payload is "tensor", "list" or "dict".',
        "parameters": [
            *_asking(),
            _header("Inference-Header-Content-Length", "The length of the JSON part.", {"type": "integer"}),
        ],
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {
                "description": "The outputs, in JSON, or with binary tensors after it, as `parameters` ask.",
                "headers": {
                    **_told(),
                    "Inference-Header-Content-Length": {
                        "description": "The length of the JSON part, if binary tensors follow.",
                        "schema": {"type": "integer"},
                    },
                },
                "content": {JSON: {"schema": {"type": "object"}}, RAW: {"schema": BINARY_SCHEMA}},
            },
            **_failures("KServeError"),
            **_unknown_model(),
        },
    }


def _body() -> dict[str, Any]:
    content = _formats("Request")
    content[JSON]["examples"] = {
        "a tensor": {"value": {"inputs": [[1.0, 2.0], [3.0, 4.0]], "dtype": "float32"}},
        "a dict of tensors": {"value": {"inputs": {"x": [1.0], "y": {"data": [1, 2], "dtype": "int32"}}}},
        "a list of tensors": {"value": {"inputs": [{"data": [1.0]}, {"data": [True, False]}]}},
    }
    return {"required": True, "content": content}


def _formats(schema: str) -> dict[str, dict[str, Any]]:
    binary = {kind: {"schema": BINARY_SCHEMA} for kind in (NPY, SAFE, RAW)}
    return {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}, **binary}


def _asking() -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1, "maxLength": 256}
    seconds = {"type": "number", "exclusiveMinimum": 0}
    return [
        _header("Idempotency-Key", "Names the request: sent again, it gets the same answer.", text),
        _header("X-Timeout-S", "Seconds after which the request is given up, and answered 504.", seconds),
        _header("X-Routing-Key", "Requests with the same key go to the same replica, if they can.", text),
        _header("traceparent", "Of the caller's trace, which is continued if traces are on (W3C Trace Context).", text),
    ]


def _told() -> dict[str, Any]:
    return {
        "multiworld-weights": {
            "description": "The version of each stage's weights: `embed=1,head=2`.",
            "schema": {"type": "string"},
        },
        "multiworld-finish-reason": {
            "description": "Of a generation: a token came that ends it, or it is as long as it may become.",
            "schema": {"enum": ["stop", "length"]},
        },
    }


def _failures(schema: str = "Error") -> dict[str, Any]:
    causes = {
        "400": "The request cannot be read, or a stage refuses it.",
        "403": "A page of another web site asks, or the name in Host is not one of this server.",
        "406": "No format that is accepted can hold the answer, or it takes too much as JSON.",
        "408": "The body came too slowly.",
        "409": "The state of a generation was lost again and again, or the request goes on from one that is not there.",
        "413": "The body is too large, or what it becomes.",
        "415": "The content type is not served.",
        "422": "The Idempotency-Key was that of a request with another payload.",
        "429": "Too much is asked at this moment: see Retry-After.",
        "500": "A stage failed.",
        "502": "Lost, and not tried again, as a stage must not execute a request twice.",
        "503": "A stage has no live replica, or the gateway stops: see Retry-After.",
        "504": "No answer within the time limit.",
    }
    return {status: _failure(cause, schema) for status, cause in causes.items()}


def _unknown_model() -> dict[str, Any]:
    return {"404": _failure("There is no such model, or version of it.", "KServeError")}


def _failure(cause: str, schema: str) -> dict[str, Any]:
    return {"description": cause, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _schemas() -> dict[str, Any]:
    numbers, dtype = {"$ref": "#/components/schemas/Numbers"}, {"enum": list(DTYPES)}
    tensor = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": numbers, "dtype": dtype, "shape": SHAPE},
        "additionalProperties": False,
    }
    tensors = {"$ref": "#/components/schemas/Tensor"}
    dtypes = {
        "description": "Of all inputs that have none of their own, or an object with one per name.",
        "oneOf": [dtype, {"type": "object", "additionalProperties": dtype}],
    }
    many = [numbers, {"type": "object", "additionalProperties": {"oneOf": [numbers, tensors]}}]
    listed = {"type": "array", "items": tensors}
    kserve_input = {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"type": "string"},
            "datatype": {"enum": list(KSERVE)},
            "shape": SHAPE,
            "data": numbers,
            "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
        },
    }
    error = {
        "type": "object",
        "required": ["type", "message"],
        "properties": {name: {"type": "string"} for name in ("type", "message", "stage")},
    }
    return {
        "Numbers": NUMBERS,
        "Tensor": tensor,
        "Request": {
            "type": "object",
            "required": ["inputs"],
            "properties": {"inputs": {"anyOf": [*many, listed]}, "dtype": dtypes, "shape": SHAPE},
        },
        "Answer": {
            "type": "object",
            "required": ["outputs"],
            "properties": {"outputs": {"anyOf": [*many, listed]}, "dtype": dtype, "shape": SHAPE},
        },
        "KServeRequest": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "id": {"type": "string"},
                "parameters": {"type": "object"},
                "inputs": {"type": "array", "minItems": 1, "items": kserve_input},
                "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
            },
        },
        "Error": {"type": "object", "required": ["error"], "properties": {"error": error}},
        "KServeError": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    }


def _get(
    summary: str, example: dict[str, Any], *, fails: str | None = None, is_of_model: bool = False
) -> dict[str, Any]:
    """Describe what is asked without a body. ``fails``: the schema of the error, if it may be 503."""
    content = {JSON: {"schema": {"type": "object"}, "example": example}}
    failure = {} if fails is None else {"503": _failures(fails)["503"]}
    responses = {"200": {"description": summary + ".", "content": content}, **failure}
    return {"summary": summary, "responses": {**responses, **(_unknown_model() if is_of_model else {})}}


def _text(summary: str, content_type: str) -> dict[str, Any]:
    content = {content_type: {"schema": {"type": "string"}}}
    return {"summary": summary, "responses": {"200": {"description": summary + ".", "content": content}}}


def _path(name: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "example": example}


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}
