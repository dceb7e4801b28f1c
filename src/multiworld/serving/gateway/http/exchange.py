"""One request and its answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Protocol

from ....observe.asgi import Receive, Scope, Send
from ..ending import Outcome
from ..formats.elements import Buffer
from ..options import GatewayOptions
from .body import BodyReader
from .budget import Budget, HeldBytes, Turns
from .interruption import ClientGoneError, Interruption

JSON = "application/json"
LOSABLE = "multiworld.connection"
"""Where a server that can leaves a Losable in the state of its scopes. Others are asked by a task."""
JOINED_BYTES = 1 << 16  # up to here one write of a copy is cheaper than two writes
SLICE_BYTES = 1 << 20  # what is written at once is copied, and waits in memory for a client that does not read
SKIPPED_BYTES = 1 << 16  # so much of an unwanted body is read for the sake of the connection
SKIP_S = 0.2
LINGER_S = 2.0
QUIET_S = 0.5


@dataclass(frozen=True)
class Answer:
    """What a request is answered. ``events``: pieces that follow, each sent when it is there."""

    status: int
    content_type: str
    pieces: list[Buffer] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    events: AsyncGenerator[bytes, None] | None = None


class Losable(Protocol):
    """A connection that calls back when it is lost, which spares a task per request, and bounds its answers' time."""

    when_lost: Callable[[], None] | None

    def limit_answer(self) -> None:
        """From now on the client has only so long to read the answer. It holds until the next request."""


class Exchange:
    """What comes and goes for one request, in the task that answers it."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, options: GatewayOptions, held: HeldBytes, turns: Turns
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = headers_of(scope)
        self.shared: Mapping[str, str] = {}
        """Headers of the answer that let a page of another site read it, and say that they depend on the site."""
        self.interruption = Interruption()
        self.request_id = ""
        self.outcome = Outcome.OPEN
        self.budget = Budget(held, turns)
        self.body = BodyReader(
            receive, self.headers, options=options, budget=Budget(held, turns), interruption=self.interruption
        )
        self._receive, self._send = receive, send
        self._losable: Losable | None = scope.get("state", {}).get(LOSABLE)
        self._watcher: asyncio.Task[None] | None = None
        self._is_streaming = False

    def begin_watch(self) -> None:
        """From now on the work is interrupted when the client goes. After the body was read only."""
        if self._losable is not None:
            self._losable.when_lost = self._gone
        elif self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def end_watch(self) -> None:
        """The result is there: what is left is to send it, which nothing interrupts."""
        self.interruption.end()
        if self._losable is not None and self._losable.when_lost == self._gone:
            self._losable.when_lost = None
        if self._watcher is not None:
            self._watcher.cancel()

    def close(self) -> None:
        """Forget the request. Idempotent."""
        self.end_watch()
        self.body.close()
        self.budget.close()

    async def answer(self, answer: Answer, *, is_last: bool) -> None:
        """Send an answer. ``is_last``: and tell the client that the connection ends with it.

        What has not been read of the body is skipped; much of it ends the connection, yet not before the client has had
        time to read why: a connection that is closed while data comes in is reset, and the answer lost.
        """
        if not self.body.is_complete and self._is_short():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.body.skip(SKIPPED_BYTES), SKIP_S)
        lingers = not self.body.is_complete
        if self._losable is not None and answer.events is None:
            self._losable.limit_answer()
        await self._send_head(answer, closes=is_last or lingers)
        if answer.events is not None:
            self._is_streaming = True
            try:
                async for event in answer.events:
                    await self._send_body(event, has_more=True)
            finally:
                await answer.events.aclose()
        elif sum(map(len, answer.pieces)) <= JOINED_BYTES:
            await self._send_body(b"".join(answer.pieces), has_more=lingers)
        else:
            if not lingers:
                self.body.close()  # what it holds others may have, while the client takes the answer
            slices = [slice_ for piece in answer.pieces for slice_ in _slices(piece)]
            for index, slice_ in enumerate(slices, 1):  # none before the client has taken most of those before it
                await self._send_body(slice_, has_more=lingers or index < len(slices))
        if lingers:
            await self._linger()
        if lingers or answer.events is not None:
            await self._send_body(b"", has_more=False)

    async def end_stream(self, event: bytes) -> None:
        """Send a last event, if a stream was begun."""
        if self._is_streaming:
            await self._send_body(event, has_more=False)

    async def _linger(self) -> None:
        """Read on for a while, as long as something comes."""
        until = time.monotonic() + LINGER_S
        with contextlib.suppress(asyncio.TimeoutError, ClientGoneError):
            while not self.body.is_complete and time.monotonic() < until:
                await asyncio.wait_for(self.body.skip(1), QUIET_S)

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone()
                return

    def _gone(self) -> None:
        self.interruption(ClientGoneError())

    def _is_short(self) -> bool:
        return self.body.declared is not None and self.body.declared <= SKIPPED_BYTES

    async def _send_head(self, answer: Answer, *, closes: bool) -> None:
        headers = [(b"date", _date()), (b"content-type", answer.content_type.encode("latin-1"))]
        if answer.events is None:
            headers.append((b"content-length", b"%d" % sum(map(len, answer.pieces))))
        if self.request_id:
            headers.append((b"x-request-id", self.request_id.encode("latin-1")))
        headers = with_shared(headers + _encoded(answer.headers), self.shared)
        if closes:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def _send_body(self, piece: Buffer, *, has_more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": has_more})


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the head of a request, as texts; a server gives the names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def with_shared(headers: list[tuple[bytes, bytes]], shared: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the head of an answer with what a SiteRule shares. Both may say what the answer varies by."""
    if not shared:
        return headers
    varies = [value for name, value in headers if name.lower() == b"vary"]
    others = [(name, value) for name, value in headers if name.lower() != b"vary"]
    for name, value in _encoded(shared):
        if name == b"vary":
            varies.append(value)
        else:
            others.append((name, value))
    return [*others, (b"vary", b", ".join(varies))] if varies else others


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers of an answer as a server takes them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _slices(piece: Buffer) -> list[Buffer]:
    if len(piece) <= SLICE_BYTES:
        return [piece]
    view = memoryview(piece)
    return [view[at : at + SLICE_BYTES] for at in range(0, len(view), SLICE_BYTES)]


class _Dates:
    """The date header of this second."""

    second = 0
    text = b""


def _date() -> bytes:
    now = int(time.time())
    if now != _Dates.second:
        _Dates.second, _Dates.text = now, formatdate(now, usegmt=True).encode()
    return _Dates.text
