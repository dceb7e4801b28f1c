"""The endpoints that tell about the gateway and what it serves: probes, metadata, metrics, documentation."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version

import orjson

from ....observe.document import Document
from ....observe.prometheus import CONTENT_TYPE, Family, families_text
from ....wire.messages import Json
from ..error_body import HttpError
from ..formats.kserve import model_metadata
from ..http.exchange import JSON, Answer
from ..http_metrics import families_of
from ..options import GatewayOptions
from ..served import Metric, Served, can_stream, signature_of
from .openapi import describe

Gather = Callable[[list[Family]], Awaitable[list[Family]]]
"""Returns what ``/metrics`` shows, given a gateway's own: those of others beside it, say."""

VERSIONS = ("1",)
"""KServe's versions of a model. Which weights serve is the pipeline's business: to clients it is one model."""


class About:
    """``vitals``: the gateway's own numbers, as JSON; ``own_metrics``: for Prometheus;
    ``gather``: what joins them with those of other gateways."""

    def __init__(
        self,
        served: Served,
        options: GatewayOptions,
        *,
        is_stopping: Callable[[], bool],
        vitals: Callable[[], Mapping[str, object]],
        own_metrics: Callable[[], list[Family]],
        gather: Gather | None = None,
    ) -> None:
        self._served, self._is_stopping = served, is_stopping
        self._options, self._vitals, self._own_metrics = options, vitals, own_metrics
        self._gather = gather

    def live(self) -> Answer:
        return _json({"live": True})

    def ready(self) -> Answer:
        """200, or 503 with the reason."""
        self._check_ready()
        return _json({"ready": True})

    def model_ready(self) -> Answer:
        self._check_ready()
        return _json({"name": self._served.name, "ready": True})

    def status(self) -> Answer:
        is_ready, reason = self._readiness()
        status = dict(self._served.status())
        status["gateway"] = {**self._vitals(), "ready": is_ready, "reason": reason}
        return _json(status)

    async def metrics(self) -> Answer:
        families = self.families()
        if self._gather is not None:
            families = await self._gather(families)
        return Answer(200, CONTENT_TYPE, [families_text(families).encode()])

    def families(self) -> list[Family]:
        """Return this gateway's own metrics."""
        is_ready, _ = self._readiness()
        ready = {
            "ready": Metric(kind="gauge", help="Whether a request would be answered now.", samples=[({}, is_ready)])
        }
        return [*self._own_metrics(), *families_of({**ready, **self._served.metrics()})]

    def server(self) -> Answer:
        """KServe's metadata of the server."""
        return _json({"name": "multiworld", "version": _version(), "extensions": ["binary_tensor_data"]})

    def model(self) -> Answer:
        """KServe's metadata of the model. Its tensors are listed as far as a signature tells of them."""
        return _json(
            {
                "name": self._served.name,
                "versions": list(VERSIONS),
                "platform": "multiworld_pipeline",
                **model_metadata(signature_of(self._served)),
            }
        )

    def repository(self) -> Answer:
        """KServe's list of models: the one that there is."""
        is_ready, reason = self._readiness()
        model = {"name": self._served.name, "version": VERSIONS[-1], "state": "READY" if is_ready else "UNAVAILABLE"}
        return Answer(200, JSON, [orjson.dumps([{**model, "reason": "" if is_ready else reason}])])

    def openapi(self) -> Answer:
        return _json(self._description)

    def docs(self) -> Answer:
        """A page that shows the document, for people, and tries ``/infer``."""
        document = Document(__package__)
        page = document.page(f"{self._served.name} · multiworld", self._description)
        headers = {"content-security-policy": document.policy, "x-content-type-options": "nosniff"}
        return Answer(200, "text/html; charset=utf-8", [page.encode()], headers)

    def home(self) -> Answer:
        return Answer(307, "text/plain; charset=utf-8", [b"see /docs\n"], {"location": "/docs"})

    @functools.cached_property
    def _description(self) -> Mapping[str, Json]:
        return describe(self._served.name, _version(), self._options, streams=can_stream(self._served))

    def _readiness(self) -> tuple[bool, str]:
        return (False, "the gateway is stopping") if self._is_stopping() else self._served.readiness()

    def _check_ready(self) -> None:
        is_ready, reason = self._readiness()
        if not is_ready:
            raise HttpError(503, reason, kind="NotReadyError")


def _json(value: Mapping[str, object]) -> Answer:
    """Answer an object; what JSON has no type for is written as its ``str``."""
    return Answer(
        200, JSON, [orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)]
    )


@functools.cache
def _version() -> str:
    try:
        return version("multiworld")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
