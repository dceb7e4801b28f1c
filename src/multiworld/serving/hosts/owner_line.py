"""The line between a host process and the process that started it: a ready call, orders, and the end of either."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ProtocolError
from ...wire.progress import ProgressThread
from .lines import LineSplitter, to_line

__all__ = ["OwnerLine"]

CHUNK_BYTES = 64 * 1024


class OwnerLine:
    """The host process's end. ``on_lost`` is called once, when the owner closed its end or died."""

    def __init__(
        self,
        loop: ProgressThread,
        sock: socket.socket,
        *,
        on_order: Callable[[dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._loop, self._sock, self._on_order, self._on_lost = loop, sock, on_order, on_lost
        self._splitter = LineSplitter()
        sock.setblocking(False)
        loop.register(sock.fileno(), select.EPOLLIN, self)

    def say(self, record: Mapping[str, Any]) -> None:
        """A few small records only: the owner's end takes them without being read."""
        try:
            self._sock.send(to_line(record), socket.MSG_NOSIGNAL)
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
            records = self._splitter.feed(chunk)
        except ProtocolError:
            self._lose()
            return
        for record in records:
            self._on_order(record)

    def on_failure(self, error: BaseException) -> None:
        self._lose()

    def close_descriptor(self) -> None:
        self._sock.close()

    def _lose(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()
            self._on_lost()
