"""Decide which endpoint a path and a method mean."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ..error_body import HttpError
from ..http.exchange import Answer, Exchange
from .about import VERSIONS, About
from .inference import Inference

Handler = Callable[[Exchange], Awaitable[Answer]]
SHARED = "send tensors in the body"
EXTENSIONS = {
    "stats": ("statistics", "/metrics and /status have the counts"),
    "trace": ("trace", "multiworld serve --trace sends spans"),
    "logging": ("logging", "the gateway logs to its standard error"),
    "repository": ("model_repository(unload_dependents)", "/v2/repository/index lists the one model that there is"),
    "systemsharedmemory": ("system_shared_memory", SHARED),
    "cudasharedmemory": ("cuda_shared_memory", SHARED),
    "generate": ("generate", "POST /generate answers with a series"),
    "generate_stream": ("generate", "POST /generate answers with a series"),
}
"""By the first part of their paths."""


@dataclass(frozen=True)
class Route:
    """``label``: the same for all paths of one kind, for counting."""

    label: str
    handlers: Mapping[str, Handler]

    def handler(self, method: str) -> Handler:
        """Return what answers that method; refused: one that has nothing to do here."""
        found = self.handlers.get("GET" if method == "HEAD" else method)
        if found is None:
            allow = ", ".join([*self.handlers, *(["HEAD"] if "GET" in self.handlers else [])])
            raise HttpError(405, f"{method:.20} is not for {self.label}; {allow} is", allow=allow)
        return found


class Routes:
    """All endpoints."""

    def __init__(self, name: str, inference: Inference, about: About) -> None:
        self._name, self._inference, self._about = name, inference, about
        gets = {
            "/": about.home,
            "/docs": about.docs,
            "/openapi.json": about.openapi,
            "/healthz": about.live,
            "/readyz": about.ready,
            "/status": about.status,
            "/v2": about.server,
            "/v2/health/live": about.live,
            "/v2/health/ready": about.ready,
        }
        self._fixed = {path: Route(path, {"GET": _plain(answer)}) for path, answer in gets.items()}
        self._fixed["/metrics"] = Route("/metrics", {"GET": _alone(about.metrics)})
        self._fixed["/infer"] = Route("/infer", {"POST": inference.infer})
        self._fixed["/generate"] = Route("/generate", {"POST": inference.generate})
        self._fixed["/v2/repository/index"] = Route("/v2/repository/index", {"POST": _plain(about.repository)})

    def find(self, path: str) -> Route:
        """Return the route of a path; refused: one that leads nowhere, or to another model."""
        route = self._fixed.get(path) or self._fixed.get(path.rstrip("/"))
        if route is not None:
            return route
        if path.startswith("/v2/models/"):
            return self._of_model(path.removeprefix("/v2/models/").rstrip("/").split("/"))
        if path.startswith("/v2/"):
            _refuse_extension(path.removeprefix("/v2/").rstrip("/").split("/"))
        raise HttpError(404, f"there is nothing at {path!r:.120}; /docs lists what there is")

    def _of_model(self, parts: list[str]) -> Route:
        name, *rest = parts
        if name != self._name:
            if not rest:
                _refuse_extension(parts)
            raise HttpError(404, f"there is no model {name!r:.80}; there is {self._name!r}", kind="UnknownModelError")
        version, label = VERSIONS[-1], "/v2/models/{name}"
        if rest[:1] == ["versions"]:
            version, rest, label = (rest[1] if len(rest) > 1 else ""), rest[2:], f"{label}/versions/{{version}}"
            if version not in VERSIONS:
                raise HttpError(404, f"model {name!r} has no version {version!r:.40}", kind="UnknownModelError")
        if not rest:
            return Route(label, {"GET": _plain(self._about.model)})
        if rest == ["ready"]:
            return Route(f"{label}/ready", {"GET": _plain(self._about.model_ready)})
        if rest == ["infer"]:
            return Route(f"{label}/infer", {"POST": lambda exchange: self._inference.kserve(exchange, version)})
        _refuse_extension(rest)
        raise HttpError(404, f"a model has /ready and /infer, not {'/'.join(rest)!r:.80}")


def _refuse_extension(parts: list[str]) -> None:
    """Refuse what belongs to an extension of KServe's protocol that others serve; a model may be called so, too."""
    if parts[0] in EXTENSIONS:
        extension, instead = EXTENSIONS[parts[0]]
        raise HttpError(501, f"the extension {extension!r} is not served; {instead}")


def _alone(answer: Callable[[], Awaitable[Answer]]) -> Handler:
    async def handler(exchange: Exchange) -> Answer:
        return await answer()

    return handler


def _plain(answer: Callable[[], Answer]) -> Handler:
    async def handler(exchange: Exchange) -> Answer:
        return answer()

    return handler
