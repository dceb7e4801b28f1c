"""What is asked and told besides payloads: how a request is asked, and what is known of its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict


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
