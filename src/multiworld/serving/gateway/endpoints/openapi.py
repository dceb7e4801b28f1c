"""What the gateway offers, as OpenAPI 3.1: ``assets/openapi.json``, filled in. It stands beside the routes it tells of.

In the asset, ``{name}`` and the like stand for what differs between gateways. What several operations share stands once
under ``components`` and is written out here: tools for clients read it where it is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ....wire.messages import Json
from ..formats.dtypes import DTYPES, KSERVE
from ..options import GatewayOptions

COMPONENTS, SCHEMAS = "#/components/", "#/components/schemas/"
MODEL, KSERVE_PATHS = "/v2/models/{name}", "/v2"
VERSION = {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}, "example": "1"}


def describe(name: str, version: str, options: GatewayOptions, *, streams: bool) -> Mapping[str, Json]:
    """Return the document. ``streams``: whether there is /generate."""
    document: Any = json.loads((files(__package__) / "assets" / "openapi.json").read_text(encoding="utf-8"))
    values = {"{name}": name, "{version}": version, "{dtypes}": list(DTYPES), "{datatypes}": list(KSERVE)}
    paths: dict[str, Any] = {}
    for path, operations in document["paths"].items():
        error = "KServeError" if path.startswith(KSERVE_PATHS) else "Error"
        if streams or path != "/generate":
            paths[path] = _filled(operations, document["components"], values | {SCHEMAS + "Error": SCHEMAS + error})
    for path in [path for path in paths if path.startswith(MODEL)]:
        versioned = f"{MODEL}/versions/{{version}}{path.removeprefix(MODEL)}"
        paths[versioned] = {**paths[path], "parameters": [*paths[path]["parameters"], VERSION]}
    info = {
        key: text.format(
            name=name,
            version=version,
            max_body_bytes=options.max_body_bytes,
            max_json_bytes=options.max_json_bytes,
            nan_policy=options.nan_policy,
        )
        for key, text in document["info"].items()
    }
    schemas = _filled(document["components"]["schemas"], {}, values)
    return {"openapi": document["openapi"], "info": info, "paths": paths, "components": {"schemas": schemas}}


def _filled(node: Any, components: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of the asset with the values, and with what it refers to, but for schemas."""
    if isinstance(node, list):
        return [_filled(each, components, values) for each in node]
    if not isinstance(node, dict):
        return values.get(node, node) if isinstance(node, str) else node
    kind, _, key = node.get("$ref", "").removeprefix(COMPONENTS).partition("/")
    if key and kind != "schemas":
        return _filled(components[kind][key], components, values)
    return {name: _filled(each, components, values) for name, each in node.items()}
