"""Read the header with which a caller has its trace continued (W3C Trace Context), and decide what is traced. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1


@dataclass(frozen=True)
class Parent:
    """The caller's span."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(text: str) -> Parent | None:
    """Return None for what is none: the specification has a malformed header treated as if there were no header."""
    match = FORM.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return Parent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & SAMPLED))


def is_traced(parent: Parent | None, ratio: float, drawn: float) -> bool:
    """Whether a request is traced. ``drawn``: at random from [0, 1). A caller that traces decides for its requests."""
    return parent.is_sampled if parent is not None else drawn < ratio
