"""Read the body of a request: within a size, a time between its pieces, and a share of the memory for all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ....observe.asgi import Receive
from ..error_body import HttpError
from ..options import GatewayOptions
from .budget import Budget
from .inflating import Inflater, coding_of
from .interruption import ClientGoneError, Interruption

MAX_DIGITS = 20
"""Of a length: already these are larger than any body that is served."""


class BodyReader:
    """The body of one request. ``close`` gives back what it has taken of ``budget``, which is for it alone."""

    def __init__(
        self,
        receive: Receive,
        headers: Mapping[str, str],
        *,
        options: GatewayOptions,
        budget: Budget,
        interruption: Interruption,
    ) -> None:
        self._receive, self._options, self._budget, self._interruption = receive, options, budget, interruption
        self._headers = headers
        self.declared = _declared(headers)
        """What the head says of the length; None: nothing (the body is chunked)."""
        self.is_complete = self.declared == 0
        """Whether nothing of it can come any more."""

    async def read(self, max_bytes: int) -> bytearray:
        """Return it all, inflated if it is compressed.

        Refused: more than ``max_bytes``, as soon as that is known, a client that is too slow, and what cannot be
        inflated.
        """
        coding = coding_of(self._headers)
        inflater = None if coding is None else Inflater(coding)
        if self.declared is not None and self.declared > max_bytes:
            raise _too_large(max_bytes)
        body = bytearray()
        clock = _Clock(self._options, self._interruption)
        try:
            while not self.is_complete:
                chunk = await self._next()
                clock.heard()
                if inflater is None:
                    self._append(body, chunk, max_bytes)
                    continue
                for piece in inflater.inflate(chunk):
                    self._append(body, piece, max_bytes)
                    await self._budget.wait_turn()
                    clock.heard()
        finally:
            clock.stop()
        if inflater is not None:
            inflater.finish()
        return body

    def _append(self, body: bytearray, piece: bytes, max_bytes: int) -> None:
        if len(body) + len(piece) > max_bytes:
            raise _too_large(max_bytes)
        self._budget.take(len(piece))
        body += piece

    async def skip(self, max_bytes: float) -> None:
        """Read up to about as many bytes and forget them."""
        skipped = 0
        while not self.is_complete and skipped < max_bytes:
            skipped += len(await self._next())

    def close(self) -> None:
        self._budget.close()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        self.is_complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk


class _Clock:
    """Interrupts when no piece has come for a while, or the whole takes too long. One timer, whatever comes."""

    def __init__(self, options: GatewayOptions, interruption: Interruption) -> None:
        self._loop = asyncio.get_running_loop()
        self._options, self._interruption = options, interruption
        self._began = self._heard = self._loop.time()
        self._timer = self._loop.call_at(self._due(), self._look)

    def heard(self) -> None:
        self._heard = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _due(self) -> float:
        return min(self._heard + self._options.body_timeout_s, self._began + self._options.body_total_timeout_s)

    def _look(self) -> None:
        if self._loop.time() < self._due():
            self._timer = self._loop.call_at(self._due(), self._look)
            return
        now = self._loop.time()
        silent_s = now - self._heard
        silent = f", and nothing of it for {silent_s:.1f} s" if silent_s >= self._options.body_timeout_s else ""
        message = f"the body has not come within {now - self._began:.1f} s{silent}"
        self._interruption(HttpError(408, message))


def _declared(headers: Mapping[str, str]) -> int | None:
    if "transfer-encoding" in headers:
        return None
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text.lstrip("0")[:MAX_DIGITS] or "0")  # Python refuses to read thousands of them


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"the body is larger than the {max_bytes} bytes that are served")
