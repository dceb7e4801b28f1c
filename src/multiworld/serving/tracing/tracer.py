"""What an ingress needs of a tracer of its requests: an interface, so that it knows nothing of OpenTelemetry."""

from __future__ import annotations

from typing import Any, Protocol

from .spans import Journey


class Tracer(Protocol):
    """Used on the ingress's event loop; never blocks it."""

    def begin(self, traceparent: str) -> Any:
        """Return what ``finish`` needs, for a request that is to be traced; None for others.

        ``traceparent``: the caller's header; empty if there is none.
        """

    def finish(self, context: Any, journey: Journey) -> None:
        """The request has ended."""
