"""What travels with a request besides its payload: its routing key, the weights it came through, and its trace. Pure.

Most requests have none of it. A context is shared with copies of the item; who notes something makes a new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import MessageError
from ...wire.messages import from_json
from ..tracing.hops import Hops

Versions = Mapping[str, tuple[int, ...]]
"""By stage. More than one: parts of the request were executed by replicas of different versions."""


@dataclass(frozen=True, kw_only=True)
class RequestContext:
    """``weights``: of stages that executed it in another version than the first. ``hops``: None: it is not traced."""

    key: str | None = None
    weights: Versions = field(default_factory=dict)
    hops: Hops | None = None


EMPTY = RequestContext()


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """As JSON: what the codec checks."""

    weights: Versions = field(default_factory=dict)


def encode(context: RequestContext) -> bytes:
    """Return JSON of what there is; nothing for an empty one."""
    fields: dict[str, object] = {}
    if context.key is not None:
        fields["key"] = context.key
    if context.weights:
        fields["weights"] = context.weights
    if context.hops is not None:
        fields["hops"] = [*context.hops.received, *map(vars, context.hops.own)]
    return json.dumps(fields).encode() if fields else b""


def decode(data: bytes) -> RequestContext:
    """Return what ``encode`` was given. Raises MessageError, or ValueError for what is no JSON."""
    fields = json.loads(data)
    if type(fields) is not dict:
        raise MessageError("context", "", "an object is needed")
    key = fields.get("key")
    if key is not None and type(key) is not str:
        raise MessageError("context", "key", "a string is needed")
    weights = from_json(_Weights, fields).weights if "weights" in fields else EMPTY.weights
    hops = fields.get("hops")
    if hops is not None and type(hops) is not list:
        raise MessageError("context", "hops", "an array is needed")
    return RequestContext(key=key, weights=weights, hops=None if hops is None else Hops(received=tuple(hops)))
