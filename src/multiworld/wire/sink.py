"""What a connection hands its frames to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .frames import Header

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["ConnectionSink", "Nobody", "OpenedSink"]


class ConnectionSink(Protocol):
    """What a connection talks to. All methods run with the connection's read side held: be short, use ``defer``."""

    def begin(self, header: Header, meta: bytes) -> memoryview | None: ...

    def end(self, header: Header, meta: bytes) -> None: ...

    def lost(self, reason: str) -> None:
        """The connection is gone; called exactly once, also after ``abort``. Nothing is held."""


@runtime_checkable
class OpenedSink(Protocol):
    """A sink that wants to know its connection before the first frame comes."""

    def opened(self, connection: Connection) -> None: ...


class Nobody:
    """The sink of a connection that is over."""

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        return None

    def end(self, header: Header, meta: bytes) -> None: ...

    def lost(self, reason: str) -> None: ...
