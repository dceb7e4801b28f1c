"""The page over HTTP, as an ASGI application that is mounted at ``/page`` or serves alone; it is read-only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

from ...observe.access import may_read
from ...observe.sites import SiteRule
from .document import POLICY, document
from .recorder import Recorder

__all__ = ["PREFIX", "PageApp"]

PREFIX = "/page"
KEEPALIVE_S = 15.0
MAX_STREAMS = 64
RETRY_MS = 500  # for a browser to come again

Scope = Any  # each server has types of its own for these
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class PageApp:
    """``/page``, ``/page/data`` (JSON) and ``/page/events`` (server-sent events) of one deployment.

    ``sites``: what browsers may ask, and whether others than this host reach it. Readers elsewhere,
    or behind a proxy, must show ``token``; without one only readers on this host are answered.
    """

    def __init__(self, recorder: Recorder, *, token: str = "", sites: SiteRule | None = None) -> None:
        self._recorder, self._token, self._sites = recorder, token, sites or SiteRule()
        self._num_streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; 404 for a path that is not the page's."""
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} is served")
        answer = _Answer(send, is_head=scope["method"] == "HEAD")
        path = scope["path"].removeprefix(PREFIX).rstrip("/")
        if refusal := self._refusal(scope):
            await answer.whole(*refusal)
        elif scope["method"] not in ("GET", "HEAD"):
            await answer.whole(405, "the page can only be read", allow="GET, HEAD")
        elif path == "":
            await answer.whole(200, document(self._recorder.data()), "text/html; charset=utf-8")
        elif path == "/data":
            await answer.whole(200, _dumps(self._recorder.data()), "application/json")
        elif path == "/events":
            await self._stream(scope, receive, answer)
        else:
            await answer.whole(404, f"there is {PREFIX}, {PREFIX}/data and {PREFIX}/events")

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._sites.refusal(scope["method"], headers)
        if refusal:
            return 403, refusal
        if self._sites.is_from_here(headers):
            return None
        if not self._token:
            return 403, "this page is for readers on its own host, unless it is given a token"
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if may_read(self._token, headers.get("authorization", ""), query):
            return None
        return 401, "show the deployment's token: ?token=... or Authorization: Bearer ..."

    async def _stream(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Send what changes until the reader goes, or there is nothing more to come."""
        if self._num_streams >= MAX_STREAMS:
            await answer.whole(503, f"{MAX_STREAMS} readers follow this page already", retry_after="5")
            return
        self._num_streams += 1
        last_id = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
        sending = asyncio.ensure_future(answer.stream(self._messages(last_id)))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._num_streams -= 1
            for task in (sending, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
            with suppress(asyncio.CancelledError):
                await leaving

    async def _messages(self, last_id: str) -> AsyncIterator[str]:
        recorder = self._recorder
        run, _, number = last_id.partition(":")
        num_stories = int(number) if run == recorder.run and number.isascii() and number.isdecimal() else 0
        num_points, shown, graph = 0, None, None
        yield f"retry: {RETRY_MS}\n" + _message("hello", {"run": recorder.run})
        while not recorder.closed:
            version = recorder.version
            messages = []
            if recorder.graph is not graph:
                graph = recorder.graph
                messages.append(_message("graph", graph))
            if recorder.shown is not shown:
                shown = recorder.shown
                messages.append(_message("snapshot", shown))
            if recorder.series.num_seen > num_points:
                points = recorder.series.since(num_points)
                num_points = recorder.series.num_seen
                messages.append(_message("series", {"number": num_points, "points": points}))
            if recorder.num_stories > num_stories:
                stories = recorder.stories(num_stories)
                num_stories = recorder.num_stories
                messages.append(f"id: {recorder.run}:{num_stories}\n" + _message("events", stories))
            yield "".join(messages) or ": still here\n\n"
            await recorder.wait(version, KEEPALIVE_S)


class _Answer:
    """One answer, whole or in parts. A HEAD has no body."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send, self._is_head = send, is_head

    async def whole(self, status: int, text: str, content_type: str = "text/plain; charset=utf-8", **more: str) -> None:
        body = text.encode()
        await self._start(status, content_type, content_length=str(len(body)), **more)
        await self._send({"type": "http.response.body", "body": b"" if self._is_head else body})

    async def stream(self, messages: AsyncIterator[str]) -> None:
        await self._start(200, "text/event-stream", x_accel_buffering="no")
        if not self._is_head:
            async for message in messages:
                await self._send({"type": "http.response.body", "body": message.encode(), "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, content_type: str, **more: str) -> None:
        headers = {
            "content_type": content_type,
            "cache_control": "no-store",
            "content_security_policy": POLICY,
            "x_content_type_options": "nosniff",
            "referrer_policy": "no-referrer",  # the address may hold the token
            **more,
        }
        encoded = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})


async def _left(receive: Receive) -> None:
    """Return when the reader has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _message(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {_dumps(value)}\n\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
