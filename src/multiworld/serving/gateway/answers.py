"""The answers that are no inference: errors, small JSON objects, texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from .error_body import Refusal
from .http.exchange import Answer

__all__ = ["error_answer", "error_object", "html_answer", "json_answer", "json_list", "text_answer"]

JSON = "application/json"


def json_answer(value: Mapping[str, object], *, status: int = 200) -> Answer:
    """Answer an object; what JSON has no type for is written as its ``str``."""
    body = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    return Answer(status, JSON, [body])


def json_list(values: Sequence[Mapping[str, str]]) -> Answer:
    return Answer(200, JSON, [orjson.dumps(values)])


def text_answer(text: str, content_type: str) -> Answer:
    return Answer(200, content_type, [text.encode()])


def html_answer(text: str, policy: str) -> Answer:
    """Answer a page with the policy of what it may load and run."""
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    return Answer(200, "text/html; charset=utf-8", [text.encode()], headers)


def error_answer(refusal: Refusal, *, is_kserve: bool) -> Answer:
    """Answer an error, in KServe's form under ``/v2``."""
    value = {"error": refusal.message} if is_kserve else error_object(refusal)
    return Answer(refusal.status, JSON, [orjson.dumps(value)], refusal.headers())


def error_object(refusal: Refusal) -> Mapping[str, Mapping[str, str]]:
    """Return what JSON says of an error."""
    error = {"type": refusal.kind, "message": refusal.message}
    if refusal.stage:
        error["stage"] = refusal.stage
    return {"error": error}
