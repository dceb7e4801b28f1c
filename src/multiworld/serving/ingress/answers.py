"""What is asked and told besides payloads: how, errors in place of answers, and what is known of their way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .. import errors
from ..errors import ServingError

__all__ = ["DOUBTFUL", "Asked", "Report", "error_of", "fields_of"]

DOUBTFUL = "doubtful"
"""Marks an error that is not the last word: the request may still be answered by a replica that has it, too."""
CLASSES: dict[str, type[ServingError]] = {name: getattr(errors, name) for name in errors.__all__}
"""What a replica may answer with: the user's code may raise any of them."""


@dataclass(slots=True, kw_only=True)
class Report:
    """Given to ``infer``, it is filled in when the answer is there.

    ``traceparent``: the header with which the caller's own trace is to be continued, and ``request_id``: what a request
    without an id of its own is called in traces; both are only read. ``versions``: of the weights of each stage that
    executed the request; more than one if parts of it were executed by replicas of different versions. ``attempts``:
    how often the gateway sent it through from the start. ``finish_reason``: why a generation ended: "stop" (a token
    came that ends it) or "length" (it has ``max_new_tokens``, or is as long as its stages serve); "" of all else.
    """

    traceparent: str = ""
    request_id: str = ""
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    attempts: int = 0
    finish_reason: str = ""


class Asked(TypedDict, total=False):
    """How a payload is asked about besides: the arguments of each ``infer`` by name, None for what is not wanted.

    ``request_id``: the same id gets the same answer, computed once. ``timeout_s``: default, that of who is asked.
    ``key``: requests with the same key go to the same replica if they can. ``report``: is filled in.
    """

    request_id: str | None
    timeout_s: float | None
    key: str | None
    report: Report | None


def fields_of(error: ServingError) -> dict[str, Any]:
    """Return what ``error_of`` reads, ready for JSON."""
    return {"type": type(error).__name__, "args": list(error.args)}


def error_of(fields: dict[str, Any]) -> ServingError:
    """Return the error; one of a class that is not known here as a ServingError with its text."""
    kind = CLASSES.get(str(fields.get("type")))
    arguments = fields.get("args")
    if kind is None or not isinstance(arguments, list):
        return ServingError(f"an unknown error came back: {fields!r}")
    try:
        error = kind(*arguments)
        str(error)  # the user's code may have made it, of anything
    except (TypeError, ValueError):
        return ServingError(f"a malformed error came back: {fields!r}")
    return error
