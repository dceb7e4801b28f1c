"""The gateway as an ASGI application: every request ends in exactly one answer, or with its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ...observe.asgi import App, Message, Receive, Scope, Send
from ...observe.prometheus import Family
from ..errors import ServingError
from .ending import Ending, Outcome
from .endpoints.about import About, Gather
from .endpoints.inference import Inference
from .endpoints.routes import Routes
from .endpoints.sse import error_event
from .error_body import HttpError, http_error_of
from .http.budget import HeldBytes, Turns
from .http.compression import compressed
from .http.exchange import JSON, Answer, Exchange, headers_of, with_shared
from .http.interruption import ClientGoneError
from .http_metrics import HttpCounts
from .options import GatewayOptions
from .served import Served

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"
"""The route of requests that lead nowhere: their paths are the client's, and there is no end of them."""


UNAVAILABLE = 503
PREFLIGHT = "preflight"
"""The route of what a browser asks before a page of another site may ask."""
HOW_TO_ALLOW = "(to allow it: --allow-host and --cors-origin of multiworld serve)"


class Application:
    """Answers requests by asking ``served``; ``mounts``: what answers below some other paths, such as ``/page``."""

    def __init__(
        self,
        served: Served,
        options: GatewayOptions,
        mounts: Mapping[str, App] | None = None,
        *,
        gather: Gather | None = None,
    ) -> None:
        self._mounts = dict(mounts or {})
        self.counts = HttpCounts()
        self.is_stopping = False
        """Set by who stops it: it is not ready any more, and every answer is its connection's last."""
        self.num_connections: Callable[[], int] = lambda: 0
        """How many there are, as the server knows."""
        self._options, self._sites = options, options.site_rule()
        self._held, self._turns = HeldBytes(options.max_held_bytes), Turns()
        self._open: set[Exchange] = set()
        inference = Inference(served, options, self.counts, refused=self._refused)
        self.about = About(
            served,
            options,
            is_stopping=lambda: self.is_stopping,
            vitals=self.vitals,
            own_metrics=self._metrics,
            gather=gather,
        )
        self._routes = Routes(served.name, inference, self.about)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} is served")
        headers = headers_of(scope)
        why_not, shared = self._sites.refusal(scope["method"], headers), self._sites.sharing(headers)
        mounted = self._mounts.get("/" + scope["path"].lstrip("/").partition("/")[0])
        if mounted is not None and not why_not and not _is_preflight(scope["method"], headers):
            await mounted(scope, receive, _sharing(send, shared) if shared else send)
            return
        exchange = Exchange(scope, receive, send, options=self._options, held=self._held, turns=self._turns)
        exchange.shared = shared
        self._open.add(exchange)
        try:
            await self._serve(exchange, why_not)
        finally:
            self._open.discard(exchange)
            exchange.close()

    def ending(self) -> Ending:
        """Return what tells of the requests that are open now."""
        return Ending(self._open)

    def interrupt_all(self) -> None:
        """Answer 503 to all whose result is not there yet."""
        for exchange in list(self._open):
            exchange.interruption(
                HttpError(503, "the gateway stops; ask another one, or again later", kind="StoppingError")
            )

    def vitals(self) -> Mapping[str, object]:
        """Return the gateway's own numbers, as JSON."""
        return {
            "connections": self.num_connections(),
            "requests_open": len(self._open),
            "held_bytes": self._held.held_bytes,
            "clients_gone": self.counts.num_gone,
            "stopping": self.is_stopping,
        }

    async def _serve(self, exchange: Exchange, why_not: str) -> None:
        try:
            answer = await self._answer(exchange, why_not)
            await exchange.answer(answer, is_last=self.is_stopping)
            exchange.outcome = Outcome.GIVEN_UP if answer.status == UNAVAILABLE else Outcome.ANSWERED
        except ClientGoneError:
            self._gone(exchange)
        except asyncio.CancelledError:  # while a stream was sent
            reason = exchange.interruption.translate()
            if reason is None:
                raise
            if isinstance(reason, HttpError):
                exchange.outcome = Outcome.GIVEN_UP
                await exchange.end_stream(error_event(reason))
            else:
                self._gone(exchange)

    def _gone(self, exchange: Exchange) -> None:
        exchange.outcome = Outcome.GONE
        self.counts.num_gone += 1

    async def _answer(self, exchange: Exchange, why_not: str) -> Answer:
        label = UNKNOWN
        try:
            if why_not:
                raise HttpError(403, f"{why_not} {HOW_TO_ALLOW}")
            preflight = self._preflight(exchange)
            if preflight is None:
                route = self._routes.find(exchange.path)
                label = route.label
                answer = await compressed(await route.handler(exchange.method)(exchange), exchange)
            else:
                answer, label = preflight, PREFLIGHT
        except ClientGoneError:
            raise
        except asyncio.CancelledError:
            reason = exchange.interruption.translate()
            if not isinstance(reason, HttpError):
                raise reason or asyncio.CancelledError() from None
            answer = self._error(exchange, reason)
        except Exception as error:
            answer = self._error(exchange, self._refused(error))
        if answer.events is None:
            exchange.end_watch()
        self.counts.answered(label, answer.status)
        return answer

    def _preflight(self, exchange: Exchange) -> Answer | None:
        """Answer a browser that asks whether a page of another site may ask."""
        if not _is_preflight(exchange.method, exchange.headers):
            return None
        allowed = self._sites.preflight(exchange.headers)
        return None if allowed is None else Answer(200, "text/plain; charset=utf-8", headers=allowed)

    def _error(self, exchange: Exchange, error: HttpError) -> Answer:
        body = error.body(is_kserve=exchange.path == "/v2" or exchange.path.startswith("/v2/"))
        return Answer(error.status, JSON, [body], error.headers())

    def _refused(self, error: Exception) -> HttpError:
        if isinstance(error, HttpError):
            return error
        if not isinstance(error, ServingError):
            logger.error("a request failed inside the gateway", exc_info=error)
        return http_error_of(error)

    def _metrics(self) -> list[Family]:
        return self.counts.families(
            num_connections=self.num_connections(), num_open=len(self._open), held_bytes=self._held.held_bytes
        )


def _is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def _sharing(send: Send, shared: Mapping[str, str]) -> Send:
    """Return what sends answers that a page of another site may read."""

    async def sharing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": with_shared(list(message["headers"]), shared)}
        await send(message)

    return sharing
