"""What a request is answered instead of a result: one exception for the gateway's own, and how others map to it."""

from __future__ import annotations

import math

from ..errors import OverloadedError, ServingError

__all__ = ["Refusal", "refusal_of"]


class Refusal(Exception):
    """A request that is answered with an error. ``kind``: for programs, as a class name; ``message``: for people.

    Never leaves the gateway: it becomes an HTTP answer.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        stage: str = "",
        retry_after_s: float | None = None,
        allow: str = "",
    ) -> None:
        message = message.encode("utf-8", "backslashreplace").decode()  # a lone surrogate is no text that can be sent
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


def refusal_of(error: Exception) -> Refusal:
    """Return how an error of ``Served`` is answered. What is not a ServingError is not shown to the client."""
    if not isinstance(error, ServingError):
        name = type(error).__name__
        return Refusal(500, "InternalError", f"the gateway failed with {name}; its log has the details")
    return Refusal(
        error.http_status,
        type(error).__name__,
        str(error),
        stage=str(getattr(error, "stage", "") or getattr(error, "where", "")),
        retry_after_s=error.retry_after_s if isinstance(error, OverloadedError) else None,
    )
