"""One port for two protocols: agents come to meet, and workers of plain programs to the c10d store behind it.

Under the static rendezvous the user names one port, ``--master-port``. Agents meet there, and every worker expects its
``MASTER_PORT`` there, a store that is a fresh one for each generation.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

from ...wire.descriptors import is_out_of_descriptors, is_reserved
from ...wire.endpoints.addresses import family_of, listen_at, show
from ...wire.endpoints.admission import ACCEPTS_AT_ONCE, UNPROVEN_S, Admission
from ...wire.progress.thread import ProgressThread
from ...wire.rate_limited_log import RateLimitedLog

logger = logging.getLogger(__name__)

OURS = b"MW"  # with which every frame begins
C10D = struct.pack("=BI", 0, 0x3C85F7CE)
"""With which every client of a c10d store begins: VALIDATE and a number, of the byte order of its host.

A store keeps 4 kB for good of each connection that says what it does not know.
"""
PING_BYTES = 5  # what a client says next; what comes then is a request
MAX_RELAYS = 16384
MAX_BUFFERED = 256 * 1024
BACKLOG = 4096  # thousands of workers come at once
PAUSE_S = 0.05


class SharedPort:
    """Accepts on one address. ``admit(sock, address)`` takes those that speak our protocol. Progress thread only."""

    def __init__(self, loop: ProgressThread, host: str, port: int, admit: Callable[[socket.socket, Any], None]) -> None:
        """Bind and listen; raises OSError."""
        self._loop, self._admit = loop, admit
        self.host = host
        self.store: tuple[str, int] | None = None
        """Where workers of plain programs are led to; while there is none they are shown out."""
        self._relays: dict[_Relay, None] = {}  # oldest first
        self._idle: dict[_Relay, None] = {}  # those that have asked the store nothing yet
        self._sock = listen_at(host, port, BACKLOG)
        self.port = int(self._sock.getsockname()[1])
        self._guests: Admission[_Guest] = Admission(show(host, self.port), _Guest.close, _Guest.look)
        self._say_unknown, self._say_full = RateLimitedLog(logger.warning), RateLimitedLog(logger.warning)
        loop.register(self._sock.fileno(), select.EPOLLIN, self)

    def close(self) -> None:
        """Idempotent; also those that are being led to a store lose it."""
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()
        self._guests.close()
        for relay in list(self._relays):
            relay.close()

    def on_ready(self, events: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if is_out_of_descriptors(error):
                    self._loop.modify(self._sock.fileno(), 0)
                    self._loop.call_later(self._guests.cannot_accept(error), self._resume)
                    return
                continue  # gone again
            sock.setblocking(False)
            try:
                guest = _Guest(self, self._loop, sock, address)
            except OSError:  # no memory to watch it with
                sock.close()
                continue
            self._guests.came(guest, guest.name, sock.fileno())

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.modify(self._sock.fileno(), select.EPOLLIN)

    def on_failure(self, error: BaseException) -> None:
        logger.error("nobody can come to %s:%d any more: %s", self.host, self.port, error)
        self.close()

    def close_descriptor(self) -> None:
        self._sock.close()

    def greeted(self, guest: _Guest, sock: socket.socket, address: Any, words: bytes) -> None:
        """A guest has said its first words, and holds the socket no more."""
        self._guests.left(guest)
        if words.startswith(OURS):
            self._admit(sock, address)
        elif words != C10D:
            self._say_unknown(
                "connection from %s to %s dropped: it is no worker's", guest.name, show(self.host, self.port)
            )
            sock.close()
        elif self.store is None or not self._has_room(sock):
            sock.close()
        else:
            self._lead(sock, self.store)

    def left(self, guest: _Guest) -> None:
        self._guests.left(guest)

    def asked(self, relay: _Relay) -> None:
        """It has asked the store something."""
        self._idle.pop(relay, None)

    def closed(self, relay: _Relay) -> None:
        self._relays.pop(relay, None)
        self._idle.pop(relay, None)

    def _lead(self, sock: socket.socket, store: tuple[str, int]) -> None:
        try:
            relay = _Relay(self, self._loop, sock, store)
        except OSError as error:  # the store is gone, or there are no descriptors
            logger.debug("nobody can be led to the store at %s: %s", show(*store), error)
            sock.close()
            return
        self._relays[relay] = self._idle[relay] = None

    def _has_room(self, sock: socket.socket) -> bool:
        """Whether one more can be led to the store. If need be, one that has never asked it anything goes."""
        if len(self._relays) < MAX_RELAYS and not is_reserved(sock.fileno()):
            return True
        where = show(self.host, self.port)
        if not self._idle:
            self._say_full("connection to the store at %s dropped: %d are open already", where, len(self._relays))
            return False
        self._say_full("connection to the store at %s dropped for another: it has asked nothing yet", where)
        next(iter(self._idle)).close()
        return True


class _Guest:
    """Somebody of whom the first words are awaited."""

    def __init__(self, door: SharedPort, loop: ProgressThread, sock: socket.socket, address: Any) -> None:
        self._door, self._loop, self._sock, self._address = door, loop, sock, address
        self.name = show(*address[:2])
        self._is_here = True  # else the socket is closed, or another's
        loop.register(sock.fileno(), select.EPOLLIN, self)
        self._timer = loop.call_later(UNPROVEN_S, self.close)

    def on_ready(self, events: int) -> None:
        self.look()

    def look(self) -> None:
        """Hear the first words, if they are there."""
        try:
            words = self._sock.recv(len(C10D), socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            self.close()
        elif words not in (OURS, C10D) and (C10D.startswith(words) or OURS.startswith(words)):  # the rest is to come
            self._loop.modify(self._sock.fileno(), 0)
            self._loop.call_later(PAUSE_S, self._look_again)
        else:
            self._release()
            self._door.greeted(self, self._sock, self._address, words)

    def _look_again(self) -> None:
        if self._is_here:
            self._loop.modify(self._sock.fileno(), select.EPOLLIN)

    def on_failure(self, error: BaseException) -> None:
        self.close()

    def close_descriptor(self) -> None:
        self._sock.close()

    def close(self) -> None:
        if self._is_here:
            self._release()
            self._sock.close()
            self._door.left(self)

    def _release(self) -> None:
        self._is_here = False
        self._timer.cancel()
        self._loop.unregister(self._sock.fileno())


class _Relay:
    """Passes bytes between a guest and the store, both ways, until either end closes."""

    def __init__(self, door: SharedPort, loop: ProgressThread, guest: socket.socket, store: tuple[str, int]) -> None:
        self._door, self._closed = door, False
        self._unheard_bytes = len(C10D) + PING_BYTES  # until the guest asks for something
        inside = socket.socket(family_of(store[0]), socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._ends = _End(self, loop, guest), _End(self, loop, inside)
        self._ends[0].other, self._ends[1].other = self._ends[1], self._ends[0]
        try:
            with contextlib.suppress(BlockingIOError):
                inside.connect(store)
            for end in self._ends:
                end.begin()
        except OSError:
            loop.unregister(guest.fileno())
            inside.close()
            raise

    def heard(self, end: _End, num_bytes: int) -> None:
        if self._unheard_bytes >= 0 and end is self._ends[0]:
            self._unheard_bytes -= num_bytes
            if self._unheard_bytes < 0:
                self._door.asked(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for end in self._ends:
                end.release()
            self._door.closed(self)


class _End:
    """One of the two sockets of a relay, and what is still to be written to it."""

    other: _End

    def __init__(self, relay: _Relay, loop: ProgressThread, sock: socket.socket) -> None:
        self._relay, self._loop, self._sock = relay, loop, sock
        self._unsent = bytearray()
        self._is_last = False  # nothing comes behind what is unsent
        self._events = select.EPOLLIN | select.EPOLLOUT

    def begin(self) -> None:
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.register(self._sock.fileno(), self._events, self)

    def on_ready(self, events: int) -> None:
        if events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
            self._write()
        if events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP) and not self._relay._closed:
            self._read()

    def on_failure(self, error: BaseException) -> None:
        self._relay.close()

    def close_descriptor(self) -> None:
        self._sock.close()

    def release(self) -> None:
        self._loop.unregister(self._sock.fileno())
        self._sock.close()

    def take(self, data: bytes) -> None:
        """Write what came from the other end; nothing: it has closed."""
        self._unsent += data
        self._is_last = not data
        self._write()

    def _read(self) -> None:
        try:
            data = self._sock.recv(MAX_BUFFERED)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._relay.heard(self, len(data))
        self.other.take(data)
        if not self._relay._closed:
            self._interest()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._relay.close()
            return
        if not self._unsent and self._is_last:
            self._relay.close()
            return
        self._interest()
        self.other._interest()

    def _interest(self) -> None:
        """Read only while the other end takes it, write only while there is something."""
        reads = not self.other._is_last and len(self.other._unsent) < MAX_BUFFERED
        events = (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if self._unsent else 0)
        if events != self._events:
            self._events = events
            self._loop.modify(self._sock.fileno(), events)
