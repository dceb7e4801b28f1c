"""What the head of a request asks for besides its body: an id, a time limit, a key."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..error_body import HttpError
from .inflating import coding_of

PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,254}[\x21-\x7e])?")
TIMEOUT_HEADERS = ("x-timeout-s", "request-timeout")
MAX_TIMEOUT_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class RequestHead:
    request_id: str
    is_chosen: bool
    """Whether the client named the request, and may ask again for the answer; else the id only tells it from others."""
    timeout_s: float | None
    key: str | None
    traceparent: str = ""

    def within(self, timeout_s: float) -> RequestHead:
        """Return the same with a time limit that is no longer than that."""
        return replace(self, timeout_s=timeout_s if self.timeout_s is None else min(timeout_s, self.timeout_s))


def read_head(headers: Mapping[str, str], default_timeout_s: float | None) -> RequestHead:
    """Read ``Idempotency-Key``, ``X-Timeout-S`` or ``Request-Timeout``, ``X-Routing-Key`` and ``traceparent``.

    A request without an id gets one. Refused: ids and keys that are not up to 256 printable characters of ASCII, and
    time limits that are no positive number of seconds; and bodies of a content coding that is not served.
    """
    coding_of(headers)
    chosen = _plain(headers, "idempotency-key")
    request_id = chosen or os.urandom(16).hex()
    key, traceparent = _plain(headers, "x-routing-key"), headers.get("traceparent", "")
    return RequestHead(request_id, chosen is not None, _timeout_s(headers, default_timeout_s), key, traceparent)


def qualities(header: str) -> dict[str, float]:
    """Return what a header such as ``Accept`` lists, with the quality of each (RFC 9110, 12.4.2); 0 for no number."""
    found: dict[str, float] = {}
    for part in header.lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        found[name] = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    found[name] = float(parameter[2:])
                except ValueError:
                    found[name] = 0.0
    return found


def _plain(headers: Mapping[str, str], name: str) -> str | None:
    text = headers.get(name)
    if text is not None and not PLAIN.fullmatch(text):
        raise HttpError(400, f"{name} must be 1 to 256 printable characters of ASCII")
    return text


def _timeout_s(headers: Mapping[str, str], default_timeout_s: float | None) -> float | None:
    for name in TIMEOUT_HEADERS:
        if name in headers:
            try:
                timeout_s = float(headers[name])
            except ValueError:
                timeout_s = math.nan
            if not 0 < timeout_s <= MAX_TIMEOUT_S:
                raise HttpError(
                    400,
                    f"{name} must be seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f}, got {headers[name]!r:.40}",
                )
            return timeout_s
    return default_timeout_s
