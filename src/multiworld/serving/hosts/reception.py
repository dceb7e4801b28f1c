"""The controller's door: host processes dial it to be at its service, commands to ask it something."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ...errors import HandshakeError, ProtocolError, RecordError
from ...wire.addresses import listen_at, show
from ...wire.admission import ACCEPTS_AT_ONCE, UNPROVEN_S, Admission
from ...wire.descriptors import is_out_of_descriptors
from ...wire.records import ACCEPTOR
from ...wire.seldom import Seldom
from ...wire.token import check_token
from .greeting import AcceptorGreeting, refusal_of
from .host import Host
from .keep_alive import keep_alive
from .lines import LONGEST_LINE
from .spoken_lines import SpokenLines

__all__ = ["Reception"]

logger = logging.getLogger(__name__)

BACKLOG = 512
NONCE_BYTES = 16
CHUNK_BYTES = 64 * 1024
FULL_BYTES = 2 * LONGEST_LINE  # of what a peer does not read


class Reception:
    """Listens from ``start`` to ``aclose``; may be started again, at the same port, by another process.

    ``on_host`` gets each host process that connects or comes back; ``on_request`` gets a command's question and
    returns the answer: what it raises is answered as ``{"error": text}``.
    """

    def __init__(
        self,
        token: str,
        *,
        on_host: Callable[[Host], None],
        on_request: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        job: str = "",
    ) -> None:
        """``job``: of the deployment; a host with members of another one is told to end them before it is let in."""
        self.hosts: dict[str, Host] = {}
        """Those that are connected now, by name."""
        self._token, self._on_host, self._on_request = check_token(token), on_host, on_request
        self._sock: socket.socket | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._strangers: Admission[socket.socket] = Admission("the controller", _hang_up)
        self._job = job
        self._say_spoilt = Seldom(logger.warning)

    async def start(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> int:
        """Listen, and return the port. Raises OSError."""
        self._sock = listen_at(*address, BACKLOG)
        port = int(self._sock.getsockname()[1])
        self._strangers = Admission(show(address[0], port), _hang_up)
        asyncio.get_running_loop().add_reader(self._sock, self._accept)
        return port

    async def aclose(self) -> None:
        """Listen no more, and lose all connections. Idempotent."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        if visits:
            await asyncio.wait(visits)

    def _accept(self) -> None:
        assert self._sock is not None
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if is_out_of_descriptors(error):
                    loop = asyncio.get_running_loop()
                    loop.remove_reader(self._sock)
                    loop.call_later(self._strangers.cannot_accept(error), self._accept_again)
                    return
                logger.debug("a connection was gone before it was accepted: %s", error)
                continue
            sock.setblocking(False)
            self._strangers.came(sock, show(*address[:2]), sock.fileno())
            visit = asyncio.create_task(self._receive(sock, address))
            self._visits.add(visit)
            visit.add_done_callback(partial(self._left, sock))

    def _accept_again(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def _left(self, sock: socket.socket, visit: asyncio.Task[None]) -> None:
        self._visits.discard(visit)
        self._strangers.left(sock)
        sock.close()  # also if the visit was cancelled before it began

    async def _receive(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=sock)
            peer = _Peer(reader, writer)
            try:
                await self._serve(peer, sock)
            finally:
                peer.abort()
        except RecordError as error:
            self._say_spoilt("the connection from %s is ended: %s", show(*address[:2]), error)
        except (OSError, ProtocolError, asyncio.TimeoutError) as error:
            logger.debug("a connection to the controller ended: %s", error)
        except Exception:
            logger.exception("a connection to the controller failed")

    async def _serve(self, peer: _Peer, sock: socket.socket) -> None:
        try:
            purpose = await asyncio.wait_for(self._greet(peer, sock), UNPROVEN_S)
            first = await asyncio.wait_for(peer.next(), UNPROVEN_S) if purpose == "host" else None
        finally:
            self._strangers.left(sock)
        if purpose == "client":
            await self._serve_client(peer)
        elif first is not None:
            await self._serve_host(peer, first)

    async def _greet(self, peer: _Peer, sock: socket.socket) -> str | None:
        """Return the purpose of a peer that has proved the token; None if it went away."""
        hello = await peer.next()
        if hello is None:
            return None
        try:
            greeting = AcceptorGreeting(self._token, hello, os.urandom(NONCE_BYTES))
            self._strangers.spoke(sock)
            peer.send(greeting.challenge)
            answer = await peer.next()
            if answer is None:
                return None
            acceptance = greeting.accept(answer)
        except HandshakeError as error:
            await peer.refuse(**refusal_of(error))
            raise
        peer.send(acceptance)
        peer.authenticate(greeting.key)
        return greeting.purpose

    async def _serve_client(self, peer: _Peer) -> None:
        while (request := await peer.next()) is not None:
            answer: Mapping[str, Any]
            try:
                answer = await self._on_request(request)
            except Exception as error:
                logger.debug("the request %r failed", request, exc_info=True)
                answer = {"error": str(error) or type(error).__name__, "type": type(error).__name__}
            peer.send(answer)

    async def _serve_host(self, peer: _Peer, hello: dict[str, Any]) -> None:
        host = _to_host(hello, peer)
        if self._job and not {self._job}.issuperset(host.jobs):
            await peer.refuse("what runs here belongs to a deployment that is no more", outdated=True)
            return
        before = self.hosts.get(host.name)
        if before is not None and (before.pid, before.process_space) != (host.pid, host.process_space):
            await peer.refuse(f"there is a host {host.name!r} already: process {before.pid}; use another --name")
            return
        if before is not None:  # it came back before we saw that it was lost
            before.lose()
        self.hosts[host.name] = host
        try:
            self._on_host(host)
            while (event := await peer.next()) is not None:
                host.take(event)
        finally:
            if self.hosts.get(host.name) is host:
                del self.hosts[host.name]
            host.lose()


class _Peer:
    """One connection, as records."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._lines = SpokenLines()
        sock = writer.get_extra_info("socket")
        with suppress(OSError):  # the peer is gone already
            keep_alive(sock)

    def authenticate(self, key: bytes) -> None:
        """It has proved the token: from now on each record must be its own, and the next."""
        self._lines.authenticate(key, ACCEPTOR)

    async def next(self) -> dict[str, Any] | None:
        """Return the next record, or None at the end."""
        while (record := self._lines.next()) is None:
            chunk = await self._reader.read(CHUNK_BYTES)
            if not chunk:
                return None
            self._lines.feed(chunk)
        return record

    def send(self, record: Mapping[str, Any]) -> None:
        self._writer.write(self._lines.say(record))
        if self._writer.transport.get_write_buffer_size() > FULL_BYTES:
            logger.warning("a peer of the controller reads nothing; its connection is given up")
            self.abort()

    async def refuse(self, refused: str, **more: Any) -> None:
        """Say why, and give it the time to come through."""
        self.send({"refused": refused, **more})
        self._writer.close()
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)

    def abort(self) -> None:
        self._writer.transport.abort()


def _to_host(hello: Mapping[str, Any], peer: _Peer) -> Host:
    if hello.get("event") != "hello":
        raise ProtocolError("a host process must say hello first")
    try:
        return Host(hello, peer.send, peer.abort)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a hello that means nothing: {error!r}") from error


def _hang_up(sock: socket.socket) -> None:
    """End a connection; whoever serves it reads its end, and closes it."""
    with suppress(OSError):  # it has just ended by itself
        sock.shutdown(socket.SHUT_RDWR)
