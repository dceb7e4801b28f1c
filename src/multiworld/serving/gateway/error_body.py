"""What a request is answered instead of a result: the status and the body of an error, and how others map to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import orjson

from ..errors import OverloadedError, ServingError

KINDS: Final = {
    400: "BadRequestError",
    403: "ForbiddenError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    406: "NotAcceptableError",
    408: "RequestTimeoutError",
    413: "ContentTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "OverloadedError",
    431: "HeadTooLargeError",
    500: "InternalError",
    501: "NotImplementedError",
}
"""What programs tell the errors of each status by, where there is only one kind of them."""


class HttpError(Exception):
    """A request that is answered with an error. ``kind``: for programs, as a class name; ``message``: for people.

    Never leaves the gateway: it becomes an HTTP answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "",
        stage: str = "",
        retry_after_s: float | None = None,
        allow: str = "",
    ) -> None:
        """``kind``: that of the status, unless it is given; of 503 there are several."""
        message = message.encode("utf-8", "backslashreplace").decode()  # a lone surrogate is no text that can be sent
        kind = kind or KINDS[status]
        super().__init__(status, kind, message)
        self.status, self.kind, self.message, self.stage, self.allow = status, kind, message, stage, allow
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.status} {self.kind}: {self.message}"

    def headers(self) -> dict[str, str]:
        """Return what the answer's head says besides its status."""
        headers = {}
        if self.allow:
            headers["allow"] = self.allow
        if self.status in (429, 503):  # whole seconds; 0 would ask for a storm
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s or 1)))
        return headers

    def body(self, *, is_kserve: bool = False) -> bytes:
        """Return the answer's body, JSON: in the form of KServe's protocol, or as ``to_json``."""
        return orjson.dumps({"error": self.message} if is_kserve else self.to_json())

    def to_json(self) -> Mapping[str, Mapping[str, str]]:
        """Return ``{"error": {"type": …, "message": …}}``, and the ``stage`` if the error is of one."""
        error = {"type": self.kind, "message": self.message}
        if self.stage:
            error["stage"] = self.stage
        return {"error": error}


def http_error_of(error: Exception) -> HttpError:
    """Return how an error of ``Served`` is answered. What is not a ServingError is not shown to the client."""
    if not isinstance(error, ServingError):
        return HttpError(500, f"the gateway failed with {type(error).__name__}; its log has the details")
    return HttpError(
        error.http_status,
        str(error),
        kind=type(error).__name__,
        stage=str(getattr(error, "stage", "") or getattr(error, "where", "")),
        retry_after_s=error.retry_after_s if isinstance(error, OverloadedError) else None,
    )
