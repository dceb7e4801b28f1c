"""The line between a host process and the process that started it: it is ready, it is to stop, or one of both ended."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from ....errors import MessageError
from ....process.spawn import seqpacket
from ....wire.messages import decode, encode
from ....wire.progress.thread import ProgressThread
from ..messages import Stop


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Members can be started. ``warnings``: what could not be preloaded, and why."""

    pid: int
    warnings: tuple[str, ...] = ()


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
        sock.setblocking(False)
        loop.register(sock.fileno(), select.EPOLLIN, self)

    def say(self, ready: Ready) -> None:
        """The owner's end takes it without being read, if it is short."""
        told = list(ready.warnings)
        while len(content := encode(replace(ready, warnings=tuple(told)))) > seqpacket.LARGEST:
            told[-2:] = [f"{len(ready.warnings) - len(told) + 2} more warnings, which stand in the host's log"]
        try:
            seqpacket.send(self._sock, content)
        except OSError:
            self._loop.call_soon(self._lose)

    def on_ready(self, events: int) -> None:
        try:
            received = seqpacket.receive(self._sock)
            stop = None if received is None else decode(Stop, received[0])
        except BlockingIOError:
            return
        except (OSError, MessageError):
            stop = None
        if stop is None:
            self._lose()
        else:
            self._on_stop(stop.grace_s)

    def on_failure(self, error: BaseException) -> None:
        self._lose()

    def close_descriptor(self) -> None:
        self._sock.close()

    def _lose(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()
            self._on_lost()
