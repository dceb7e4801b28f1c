"""The line between a host process and the process that started it: a ready call, orders, and the end of either."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from ....errors import ProtocolError
from ....wire.progress.thread import ProgressThread
from ..messages import Stop
from .lines import LineSplitter, to_line
from .messages import OWNER_SAYS, TO_OWNER, Ready

CHUNK_BYTES = 64 * 1024


class OwnerLine:
    """The host process's end. ``on_lost`` is called once, when the owner closed its end or died."""

    def __init__(
        self,
        loop: ProgressThread,
        sock: socket.socket,
        *,
        on_stop: Callable[[float], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._loop, self._sock, self._on_stop, self._on_lost = loop, sock, on_stop, on_lost
        self._splitter = LineSplitter(OWNER_SAYS)
        sock.setblocking(False)
        loop.register(sock.fileno(), select.EPOLLIN, self)

    def say(self, ready: Ready) -> None:
        """The owner's end takes it without being read."""
        try:
            self._sock.send(to_line(TO_OWNER, ready), socket.MSG_NOSIGNAL)
        except OSError:
            self._loop.call_soon(self._lose)

    def on_ready(self, events: int) -> None:
        try:
            chunk = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._lose()
            return
        try:
            orders = self._splitter.feed(chunk)
        except ProtocolError:
            self._lose()
            return
        for order in orders:
            if isinstance(order, Stop):
                self._on_stop(order.grace_s)

    def on_failure(self, error: BaseException) -> None:
        self._lose()

    def close_descriptor(self) -> None:
        self._sock.close()

    def _lose(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()
            self._on_lost()
