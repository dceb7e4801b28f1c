"""What a connection hands its frames to."""

from __future__ import annotations

from typing import Protocol

from .frames import Header


class ConnectionSink(Protocol):
    """What a connection talks to. All methods run with the connection's read side held: be short, use ``defer``."""

    def begin(self, header: Header, meta: bytes) -> memoryview | None: ...

    def end(self, header: Header, meta: bytes) -> None: ...

    def lost(self, reason: str) -> None:
        """The connection is gone; called exactly once, also after ``abort``. Nothing is held."""


class Nobody:
    """The sink of a connection that is over."""

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        return None

    def end(self, header: Header, meta: bytes) -> None: ...

    def lost(self, reason: str) -> None: ...
