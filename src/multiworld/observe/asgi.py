"""The types of the interface between an HTTP server and an application (ASGI 3), and a site as an application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from .site import Answer, Request, Site

MAX_STREAMS = 64

Scope = Any  # each server has types of its own for these
Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiSite:
    """A site as an ASGI application, mounted at the site's prefix. ``MAX_STREAMS`` readers follow it at once."""

    def __init__(self, site: Site) -> None:
        self._site, self._num_streams = site, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; 404 for a path that the site does not have."""
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} is served")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"].removeprefix(self._site.prefix).rstrip("/")
        query = scope["query_string"].decode("latin-1")
        request = Request(method=scope["method"], path=path, query=query, headers=headers)
        answer = self._site.refusal(request) or self._site.answer(request)
        if not isinstance(answer.body, bytes) and self._num_streams >= MAX_STREAMS:
            answer = Answer.text(503, f"{MAX_STREAMS} readers follow this page already", Retry_After="5")
        head = self._site.head(answer)
        encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in head.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        if request.method == "HEAD" or isinstance(answer.body, bytes):
            body = answer.body if request.method != "HEAD" and isinstance(answer.body, bytes) else b""
            await send({"type": "http.response.body", "body": body})
            return
        assert isinstance(answer.body, AsyncIterator)
        self._num_streams += 1
        try:
            await _until_left(_send_parts(answer.body, send), receive)
        finally:
            self._num_streams -= 1


async def _send_parts(parts: AsyncIterator[bytes], send: Send) -> None:
    async for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _until_left(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Await ``work``, but no longer than the reader is there."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, leaving):
            task.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await working
        with suppress(asyncio.CancelledError):
            await leaving


async def _left(receive: Receive) -> None:
    """Return when the reader has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
