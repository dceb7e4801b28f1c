"""One connection: HTTP/1.1 by uvicorn, with the bounds that it has not.

uvicorn waits for ever for the head of a request and for a client to read, and keeps as much of a head and of trailers
as comes. It reads no more while a request is answered that had a large body, or others come behind it, and so does not
notice when the client goes. Of a request that offers another protocol (``Upgrade: h2c``) it loses the body, though it
answers in this one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ....wire.descriptors import is_reserved
from ..error_body import HttpError
from ..options import GatewayOptions
from .exchange import LOSABLE
from .room import Room, Wait

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

MAX_HEAD_BYTES = 1 << 16  # so many of trailers, too
MAX_WAITING = 8  # requests behind the one that is answered; while there are more, or their bodies are larger,
MAX_WAITING_BYTES = 1 << 16  # no more is read, and nobody sees whether the client is still there
FRAMING = (b"content-length", b"transfer-encoding")

logger = logging.getLogger(__name__)


class HttpConnection(HttpToolsProtocol):
    """Refused: connections beyond ``max_connections`` if none is idle, long or slow heads, clients that do not read."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        options: GatewayOptions,
        *,
        room: Room,
        on_refused: Callable[[int], None] | None = None,
    ) -> None:
        """``room``: what ends idle connections for new ones.

        ``on_refused``: called with the status of each answer that no request of the application's gets.
        """
        super().__init__(config, state, {LOSABLE: self})
        self.when_lost: Callable[[], None] | None = None
        self.logger = logger
        self.access_log = False  # whatever handlers somebody else has given uvicorn's logger
        self._options, self._room, self._on_refused = options, room, on_refused
        self._heard_at = time.monotonic()
        self._is_in_head = self._is_in_copy = self._is_deaf = False
        """``_is_deaf``: what comes is forgotten, as it can be no request."""
        self._num_heads = self._head_bytes = self._trailer_bytes = self._silent_bytes = 0
        """``_silent_bytes``: of a message, since the last piece of its body."""
        self._is_in_body = self._has_body_come = False
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._answer_until = math.inf
        self._running: RequestResponseCycle | None = None
        self.lost: asyncio.Future[None] = self.loop.create_future()
        """Done when the connection is no more."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_at = time.monotonic()
        is_full = len(self.connections) > self._options.max_connections
        if (is_full or is_reserved(self._descriptor())) and not self._room.make(self):
            reason = f"there are {len(self.connections)} connections already, and none is idle; try again later"
            self._refuse(HttpError(503, reason, kind="OverloadedError"))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        running = self._running
        super().connection_lost(exc)
        if running is not None and not running.response_complete:
            running.disconnected = True  # uvicorn tells only the youngest of pipelined requests
            running.message_event.set()
        if self.when_lost is not None:
            self.when_lost()
        self.pipeline.clear()
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_deaf:
            return
        self._heard_at = time.monotonic()
        self._unset_keepalive_if_required()
        num_heads, was_amid, self._has_body_come = self._num_heads, self._is_in_head or self._is_in_body, False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        if self._is_in_head:
            if self._num_heads - num_heads <= (not was_amid):  # else most of it was of the messages before
                self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(HttpError(431, f"the head is longer than {MAX_HEAD_BYTES} bytes"))
        elif self._is_in_body and not self._has_body_come:  # a trailer is told of only when it is complete
            self._silent_bytes += len(data)
            if self._silent_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(_long_trailers())
        if self._timer is None and self.timeout_keep_alive_task is None and not self._is_busy():
            self._await_head()  # what came was no request, or of one that is answered, and has ended the wait for one

    def _parse(self, data: bytes) -> None:
        """Have it parsed, and what follows the offer of another protocol as if there had been none."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            framing = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] in FRAMING)
            self._is_in_copy = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
            self._is_in_copy = False

    def on_message_begin(self) -> None:
        if self._is_in_copy:
            return
        super().on_message_begin()
        self._num_heads += 1
        self._is_in_head, self._head_bytes, self._trailer_bytes, self._silent_bytes = True, 0, 0, 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        if not self._is_in_copy:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:
            super().on_header(name, value)
        elif not self._is_in_copy and not self.transport.is_closing():  # nobody asks for trailers
            self._trailer_bytes += len(name) + len(value) + 4
            if self._trailer_bytes > MAX_HEAD_BYTES:
                self._refuse(_long_trailers())

    def on_body(self, body: bytes) -> None:
        self._has_body_come, self._silent_bytes = True, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else its body is still to come
            self._is_in_body = False
            super().on_message_complete()
            self._read_on()

    def on_headers_complete(self) -> None:
        if self._is_in_copy:
            return
        self._is_in_head, self._is_in_body = False, True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_headers_complete()
        self._read_on()

    def send_400_response(self, msg: str) -> None:
        self._refuse(HttpError(400, "this is no HTTP/1.1"))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._heard_at = time.monotonic()
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self.transport.is_closing():
            self._await_closing()

    def shutdown(self) -> None:
        """Close when the answer under way has been read, or is read no further."""
        super().shutdown()
        self._await_closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_closing()

    def on_response_complete(self) -> None:
        self._heard_at = time.monotonic()
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_closing()

    def limit_answer(self) -> None:
        """From now on the client has ``answer_total_timeout_s`` to read the answer. It holds until the next request."""
        self._answer_until = self.loop.time() + self._options.answer_total_timeout_s

    def abort(self) -> None:
        """Close now, whatever is unsent."""
        self.transport.abort()

    def waits(self) -> Wait | None:
        """Since when it waits for its client, to send or to read; None: the client waits for us, or it closes."""
        if self.transport.is_closing():
            return None
        running = self._running
        if running is None or running.response_complete:
            return self._is_in_head, self._heard_at
        return (True, self._heard_at) if running.more_body or self._writing is not None else None

    def give_way(self, silent_s: float) -> bool:
        """End it for another client; False if its client has just sent something."""
        if _has_come(self._descriptor()):
            self._heard_at = time.monotonic()
            return False
        if self._writing is not None:
            self.transport.abort()
        elif self._is_in_head or self._is_busy():
            reason = f"nothing came for {silent_s:.1f} s, and others wait for a connection"
            self._refuse(HttpError(503, reason, kind="OverloadedError"))
        else:
            self.transport.close()
            self._await_closing()
        return True

    def _descriptor(self) -> int:
        descriptor: int = self.transport.get_extra_info("socket").fileno()
        return descriptor

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Callable[..., Any]) -> None:
        self._running, self._answer_until = cycle, math.inf
        super()._start_asgi_task(cycle, app)

    def _read_on(self) -> None:
        """What is read next may be that the client has gone."""
        if len(self.pipeline) > MAX_WAITING:  # first: there may be thousands, and this is asked for each
            return
        if sum(len(cycle.body) for cycle, _ in self.pipeline) <= MAX_WAITING_BYTES:
            self.flow.resume_reading()

    def _is_busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _await_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._options.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._is_busy():  # the rest of the head may be unread because of the requests before it
            self._await_head()
        elif self._is_in_head:
            self._refuse(HttpError(408, "the head of the request has not come in time"))
        else:
            self.transport.close()
            self._await_closing()

    def _refuse(self, error: HttpError) -> None:
        """Answer what is no request, and close; the answer of the request before it, if there is one, comes first."""
        running = self._running
        if running is not None and self._is_busy() and not running.more_body:
            running.keep_alive = False
            self.pipeline.clear()
            self._is_deaf = True
            self.flow.resume_reading()
            return
        if running is not None and self._is_busy() and running.response_started:
            self.transport.close()  # an early answer to a body that cannot be read
            self._await_closing()
            return
        if self._on_refused is not None:
            self._on_refused(error.status)
        body = error.body()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers(),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + head.encode("latin-1") + b"\r\n" + body)
        self.transport.close()
        self._await_closing()

    def _await_closing(self) -> None:
        """A closing transport waits until the client has read what is left, which may be never."""
        size = self.transport.get_write_buffer_size()
        if size and self._writing is None:
            self._await_reader(size)

    def _await_reader(self, unsent_bytes: int) -> None:
        due = min(self.loop.time() + self._options.write_timeout_s, self._answer_until)
        self._writing = self.loop.call_at(due, self._look_at_reader, unsent_bytes)

    def _look_at_reader(self, unsent_bytes: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size and (size >= unsent_bytes or self.loop.time() >= self._answer_until):
            self.transport.abort()
            return
        self._writing = None
        if size:
            self._await_reader(size)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
        self._timer = self._writing = None


def _long_trailers() -> HttpError:
    return HttpError(431, f"the trailers are longer than {MAX_HEAD_BYTES} bytes")


def _has_come(descriptor: int) -> bool:
    """Whether something waits to be read, or the client has gone."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
