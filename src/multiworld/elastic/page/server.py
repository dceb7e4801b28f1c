"""Serve the page over HTTP, on threads of its own; it is read-only."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ...observe.access import may_read
from ...observe.sites import site_rule
from ...wire.addresses import listen_at, show
from ...wire.admission import MAX_IN_RESERVE
from ...wire.descriptors import is_reserved
from ...wire.seldom import Seldom
from .document import document
from .metrics import CONTENT_TYPE, metrics_text
from .snapshots import Snapshots

__all__ = ["PageServer"]

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
BACKLOG = 64
IDLE_S = 10.0  # for a request to come, or a reader to read
LOOK_S = 1.0  # what changes without an event, such as worlds, is seen after that
KEEPALIVE_S = 15.0
PAUSE_S = 0.1
MAX_REQUEST_BYTES = 65536
MAX_DIGITS = 18  # of a number of events
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\n\r\n"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageServer:
    """``token``: what readers must show if others than this host reach the address, or a proxy asks for them."""

    def __init__(self, host: str, port: int, *, token: str, snapshots: Snapshots) -> None:
        """Bind, listen, and serve; raises OSError."""
        self.token, self.snapshots = token, snapshots
        self.sites = site_rule(host)
        self._connections: dict[socket.socket, bool] = {}  # in the order of their coming; whether they were let in
        self._lock = threading.Lock()
        self._closed = False
        self._sock = listen_at(host, port, BACKLOG)
        self._sock.setblocking(True)
        self.port: int = self._sock.getsockname()[1]
        self._say_paused = Seldom(logger.warning)
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
        self.snapshots.close()

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
        refusal = self.server.sites.refusal(self.command, {name.lower(): text for name, text in self.headers.items()})
        if refusal:
            self.send_error(403, refusal)
            return
        if url.path == "/healthz":  # for probes, and tells nothing else
            self._send("text/plain; charset=utf-8", "ok\n")
            return
        if not self._is_allowed(parse_qs(url.query)):
            return
        self.server.let_in(self.connection)
        if url.path == "/":
            self._send("text/html; charset=utf-8", document(self.server.snapshots.latest()))
            return
        snapshot = self.server.snapshots.latest()
        if url.path not in ("/status", "/metrics", "/events"):
            self.send_error(404)
        elif snapshot is None:
            self.send_error(503, "this agent does not coordinate the job any more")
        elif url.path == "/status":
            self._send("application/json", snapshot.status_json + "\n")
        elif url.path == "/metrics":
            self._send(CONTENT_TYPE, metrics_text(snapshot.status, snapshot.counts))
        else:
            self._stream()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the library's name
        logger.debug("page: " + format, *args)  # noqa: G003 # the library's own format

    def _is_allowed(self, query: dict[str, list[str]]) -> bool:
        headers = {name.lower(): text for name, text in self.headers.items()}
        if self.server.sites.is_from_here(headers):
            return True
        if may_read(self.server.token, headers.get("authorization", ""), query):
            return True
        self.send_error(401, "show the job's token: ?token=... or Authorization: Bearer ...")
        return False

    def _head(self, content_type: str, **headers: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")  # it may hold the token
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send(self, content_type: str, text: str) -> None:
        body = text.encode()
        self._head(content_type, Content_Length=str(len(body)))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self) -> None:
        """Send the status whenever it changes, and the events as they come, until somebody has had enough."""
        self._head("text/event-stream")
        if self.command == "HEAD":
            return
        last_id = self.headers.get("Last-Event-ID", "")
        number, shown = int(last_id) if last_id.isdecimal() and len(last_id) <= MAX_DIGITS else 0, ""
        silent_since = time.monotonic()
        while (snapshot := self.server.snapshots.latest()) is not None:
            messages = []
            if snapshot.status_json != shown:
                shown = snapshot.status_json
                messages.append(f"event: status\ndata: {shown}\n\n")
            if number > snapshot.last_number:  # of another job, which was at this address before
                number = 0
            if events := snapshot.events_since(number):
                number = snapshot.last_number
                messages.append(f"event: events\nid: {number}\ndata: {json.dumps(events)}\n\n")
            if not messages and time.monotonic() - silent_since >= KEEPALIVE_S:
                messages.append(": still here\n\n")
            if messages:
                self.wfile.write("".join(messages).encode())
                silent_since = time.monotonic()
            self.server.snapshots.wait_for_change(snapshot.version, LOOK_S)
