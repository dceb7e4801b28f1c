"""What can be set about traces: where they go, and how many requests are traced. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TRACES_PATH = "/v1/traces"


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """Needs the extra ``tracing``. Raises ValueError for what makes no sense.

    ``url``: of a collector that takes OTLP over HTTP, as ``http://127.0.0.1:4318``. ``ratio``: the share of the
    requests that are traced without their caller asking for it; 0: those alone whose ``traceparent`` says *sampled*.
    ``exporter``: an exporter of the SDK, in place of the one for ``url``; not for ``multiworld serve``.
    """

    url: str = ""
    ratio: float = 1.0
    exporter: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, (int, float)) or isinstance(self.ratio, bool) or not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio must lie between 0 and 1, got {self.ratio!r}")
        if self.exporter is None and urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(f"url must be that of a collector, as http://127.0.0.1:4318, got {self.url!r}")

    @property
    def traces_url(self) -> str:
        """Where spans are posted: the path of OTLP below ``url``, unless that names a path itself."""
        parts = urlsplit(self.url)
        return self.url if parts.path.strip("/") else f"{self.url.rstrip('/')}{TRACES_PATH}"
