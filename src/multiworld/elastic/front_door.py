"""One port for two protocols: agents come to meet, and workers of plain programs to the c10d store behind it.

Under the static rendezvous the user names one port, ``--master-port``. Agents meet there, and every worker expects its
``MASTER_PORT`` there, a store that is a fresh one for each generation.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
from collections.abc import Callable
from typing import Any

from ..wire.addresses import family_of, listen_at
from ..wire.progress import ProgressThread

__all__ = ["FrontDoor"]

logger = logging.getLogger(__name__)

OURS = b"MW"  # with which every frame begins, and no request to a c10d store
SILENT_S = 5.0  # who has not said a word by then is shown out
MAX_BUFFERED = 256 * 1024
BACKLOG = 512
PAUSE_S = 0.05
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class FrontDoor:
    """Accepts on one address. ``admit(sock, address)`` takes those that speak our protocol. Progress thread only."""

    def __init__(self, loop: ProgressThread, host: str, port: int, admit: Callable[[socket.socket, Any], None]) -> None:
        """Bind and listen; raises OSError."""
        self._loop, self._admit = loop, admit
        self.host = host
        self.store: tuple[str, int] | None = None
        """Where the others are led to; while there is none they are shown out."""
        self._guests: set[_Guest | _Relay] = set()
        self._sock = listen_at(host, port, BACKLOG)
        self.port = int(self._sock.getsockname()[1])
        loop.register(self._sock.fileno(), select.EPOLLIN, self)

    def close(self) -> None:
        """Idempotent; also those that are being led to a store lose it."""
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()
        for guest in list(self._guests):
            guest.close()

    def on_ready(self, events: int) -> None:
        for _ in range(BACKLOG):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in SCARCE:  # nobody comes in until there are descriptors again
                    self._loop.modify(self._sock.fileno(), 0)
                    self._loop.call_later(PAUSE_S, self._resume)
                    return
                continue  # gone again
            sock.setblocking(False)
            self._guests.add(_Guest(self, self._loop, sock, address))

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.modify(self._sock.fileno(), select.EPOLLIN)

    def on_failure(self, error: BaseException) -> None:
        logger.error("nobody can come to %s:%d any more: %s", self.host, self.port, error)
        self.close()

    def close_descriptor(self) -> None:
        self._sock.close()

    def greeted(self, guest: _Guest, sock: socket.socket, address: Any, *, is_ours: bool) -> None:
        """A guest has said its first words."""
        self._guests.discard(guest)
        if is_ours:
            self._admit(sock, address)
        elif self.store is None:
            sock.close()
        else:
            self._guests.add(_Relay(self, self._loop, sock, self.store))

    def left(self, guest: _Guest | _Relay) -> None:
        self._guests.discard(guest)


class _Guest:
    """Somebody of whom the first words are awaited."""

    def __init__(self, door: FrontDoor, loop: ProgressThread, sock: socket.socket, address: Any) -> None:
        self._door, self._loop, self._sock, self._address = door, loop, sock, address
        self._timer = loop.call_later(SILENT_S, self.close)
        loop.register(sock.fileno(), select.EPOLLIN, self)

    def on_ready(self, events: int) -> None:
        try:
            words = self._sock.recv(len(OURS), socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            self.close()
        elif words == OURS[:1]:  # the second letter is still on its way
            self._loop.modify(self._sock.fileno(), 0)
            self._loop.call_later(PAUSE_S, self._look_again)
        else:
            self._release()
            self._door.greeted(self, self._sock, self._address, is_ours=words == OURS)

    def _look_again(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.modify(self._sock.fileno(), select.EPOLLIN)

    def on_failure(self, error: BaseException) -> None:
        self.close()

    def close_descriptor(self) -> None:
        self._sock.close()

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._release()
            self._sock.close()
            self._door.left(self)

    def _release(self) -> None:
        self._timer.cancel()
        self._loop.unregister(self._sock.fileno())


class _Relay:
    """Passes bytes between a guest and the store, both ways, until either end closes."""

    def __init__(self, door: FrontDoor, loop: ProgressThread, guest: socket.socket, store: tuple[str, int]) -> None:
        self._door, self._closed = door, False
        inside = socket.socket(family_of(store[0]), socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            inside.connect(store)
        self._ends = (_End(self, loop, guest), _End(self, loop, inside))
        self._ends[0].other, self._ends[1].other = self._ends[1], self._ends[0]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for end in self._ends:
                end.release()
            self._door.left(self)


class _End:
    """One of the two sockets of a relay, and what is still to be written to it."""

    other: _End

    def __init__(self, relay: _Relay, loop: ProgressThread, sock: socket.socket) -> None:
        self._relay, self._loop, self._sock = relay, loop, sock
        self._unsent = bytearray()
        self._is_last = False  # nothing comes behind what is unsent
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._events = select.EPOLLIN | select.EPOLLOUT
        loop.register(sock.fileno(), self._events, self)

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
