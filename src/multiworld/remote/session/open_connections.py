"""Which node a number means in this process: a node of the connection that was opened last and is still open."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from ..errors import ConnectError
from .session import Session


class Covering(Protocol):
    """What makes the nodes of some numbers recoverable."""

    def cover(self, session: Session) -> None:
        """A node has a new session."""

    def close(self) -> None: ...


class Connection(Protocol):
    """The nodes of a master, as far as numbers of nodes are looked up."""

    @property
    def numbers(self) -> Iterable[int]: ...

    def session_of(self, number: int) -> Session:
        """Raises NodeDeadError while the node is lost, ConnectError if there is none of that number."""

    def alive_sessions(self) -> list[Session]: ...

    def keep_recoverable(self, covering: Covering) -> None:
        """Tell it of new sessions, and close it at the end."""


_open: list[tuple[int, Connection]] = []  # with the process that opened it: a forked child has none


def opened(connection: Connection) -> None:
    _open.append((os.getpid(), connection))


def closed(connection: Connection) -> None:
    _open[:] = [each for each in _open if each[1] is not connection]


def present() -> Connection | None:
    """Return the connection that was opened last in this process; None if all have ended."""
    return next((connection for pid, connection in reversed(_open) if pid == os.getpid()), None)


def check_single(*, has_name: bool) -> None:
    """A connection is about to be opened. ``has_name``: the device name is in use, and means the nodes of one.

    Raises ConnectError.
    """
    if has_name and present() is not None:
        raise ConnectError(
            "another connection is open, and the device name means its nodes: 'remote:1' can't mean two. End that one "
            "first, by nodes.close() or by leaving its block"
        )


def beside(session: Session, number: int) -> Session:
    """Return the present session of a node that the connection of ``session`` has. Raises as ``session_of``."""
    for connection in all_present():
        if session in connection.alive_sessions():
            return connection.session_of(number)
    return session_of(number)


def all_present() -> list[Connection]:
    """Return all connections that are open in this process."""
    return [connection for pid, connection in _open if pid == os.getpid()]


def session_of(number: int) -> Session:
    """Return the present session of a node. Raises ConnectError, NodeDeadError."""
    connection = present()
    if connection is None:
        raise ConnectError(f"there is no node {number}: this process has no open connection to nodes")
    return connection.session_of(number)
