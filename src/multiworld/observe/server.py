"""Serve the page over HTTP, on threads of its own; it is read-only."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from ..wire.descriptors import is_reserved
from ..wire.endpoints.addresses import listen_at, show
from ..wire.endpoints.admission import MAX_IN_RESERVE
from ..wire.rate_limited_log import RateLimitedLog
from .site import Answer, Request, Site

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
BACKLOG = 64
IDLE_S = 10.0  # for a request to come, or a reader to read
PAUSE_S = 0.1
MAX_REQUEST_BYTES = 65536
HEALTHZ = "/healthz"  # for probes; it tells nothing else, so nobody counts as a reader for it
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\n\r\n"


class PageServer:
    """Serves a site at an address. ``on_close`` ends the site's streams."""

    def __init__(self, host: str, port: int, site: Site, *, on_close: Callable[[], None] = lambda: None) -> None:
        """Bind, listen, and serve; raises OSError."""
        self.site, self._on_close = site, on_close
        self._connections: dict[socket.socket, bool] = {}  # in the order of their coming; whether they were let in
        self._lock = threading.Lock()
        self._closed = False
        self._sock = listen_at(host, port, BACKLOG)
        self._sock.setblocking(True)
        self.port: int = self._sock.getsockname()[1]
        self._say_paused = RateLimitedLog(logger.warning)
        self._threads: set[threading.Thread] = set()
        self._start(threading.Thread(target=self._serve, name="multiworld-page", daemon=True))

    def close(self) -> None:
        """Stop serving, without waiting. Idempotent; any thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connections = list(self._connections)
        for sock in [self._sock, *connections]:
            with suppress(OSError):  # it has just ended by itself
                sock.shutdown(socket.SHUT_RDWR)
        self._on_close()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, after ``close``."""
        until = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    def _start(self, thread: threading.Thread) -> None:
        self._threads.add(thread)
        thread.start()

    def _serve(self) -> None:
        with self._sock:
            while True:
                try:
                    sock, address = self._sock.accept()
                except OSError as error:
                    if self._closed:
                        return
                    where = show(*self._sock.getsockname()[:2])
                    self._say_paused("the page at %s accepts no connection now, and tries again: %s", where, error)
                    time.sleep(PAUSE_S)  # there may be no descriptor left
                    continue
                self._admit(sock, address)

    def _admit(self, sock: socket.socket, address: Any) -> None:
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        most = min(MAX_IN_RESERVE, MAX_CONNECTIONS) if is_reserved(sock.fileno()) else MAX_CONNECTIONS
        with self._lock:
            self._make_room(most)
            has_room = len(self._connections) < most and not self._closed
            if has_room:
                self._connections[sock] = False
        if has_room:
            thread = threading.Thread(target=self._answer, args=(sock, address), name="multiworld-page", daemon=True)
            try:
                self._start(thread)
            except RuntimeError as error:  # there can be no more threads now
                self._say_paused("the page cannot answer %s now: %s", show(*address[:2]), error)
                self._threads.discard(thread)
                with self._lock:
                    self._connections.pop(sock, None)
                self._turn_away(sock)
        else:
            self._turn_away(sock)

    def _turn_away(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            sock.settimeout(0)
            sock.send(BUSY)
            sock.recv(MAX_REQUEST_BYTES)  # what is left unread when it is closed would take the answer back

    def _make_room(self, most: int) -> None:
        """With the lock held: those that are longest about a request keep nobody else from theirs."""
        strangers = [each for each, let_in in self._connections.items() if not let_in]
        for oldest in strangers[: max(0, len(self._connections) - most + 1)]:
            del self._connections[oldest]
            with suppress(OSError):  # it has just ended by itself
                oldest.shutdown(socket.SHUT_RDWR)

    def let_in(self, sock: socket.socket) -> None:
        """It has asked for something, and may have that."""
        with self._lock:
            if sock in self._connections:
                self._connections[sock] = True

    def _answer(self, sock: socket.socket, address: Any) -> None:
        try:
            with sock, suppress(OSError):  # the reader went away
                _Handler(sock, address, self)  # type: ignore[arg-type] # it wants no more of a server than we have
        finally:
            with self._lock:
                self._connections.pop(sock, None)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: PageServer  # type: ignore[assignment] # ours, not the library's
    timeout = IDLE_S

    def version_string(self) -> str:
        return "multiworld"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            self.send_error(400, str(error))
            return
        headers = {name.lower(): text for name, text in self.headers.items()}
        request = Request(method=self.command, path=url.path, query=url.query, headers=headers)
        answer = self.server.site.refusal(request)
        if answer is None and url.path == HEALTHZ:
            answer = Answer.text(200, "ok\n")
        elif answer is None:
            self.server.let_in(self.connection)
            answer = self.server.site.answer(request)
        self._send(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the library's name
        logger.debug("page: " + format, *args)  # noqa: G003 # the library's own format

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in self.server.site.head(answer).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if isinstance(answer.body, bytes):
            self.wfile.write(answer.body)
            return
        assert isinstance(answer.body, Iterator)
        for part in answer.body:
            self.wfile.write(part)
