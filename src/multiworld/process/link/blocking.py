"""Control links of a command: dialed and waited for from a thread that may block, and ended all together."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from ...wire.connection.connection import Connection
from ...wire.endpoints.dialer import dial
from ...wire.endpoints.handshake import DialerHello
from ...wire.progress.operation import Operation, pass_on
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import outcome, wait_blocking
from .control_link import ControlLink
from .redial import DIAL_S

Opened = TypeVar("Opened", bound=ControlLink[Any, Any])
A = TypeVar("A")


class BlockingLinks:
    """A context manager."""

    def __init__(self, name: str) -> None:
        self._loop = ProgressThread(name)
        self._links: list[ControlLink[Any, Any]] = []

    def __enter__(self) -> BlockingLinks:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.abort()
        self._loop.stop()

    def connect(
        self, host: str, port: int, token: str, purpose: str, link: Opened, timeout_s: float = DIAL_S
    ) -> Opened:
        """Open the link. Raises DialError or HandshakeError."""
        self._links.append(link)
        connected: Operation[Connection] = Operation()

        def call() -> None:  # on the loop's thread: else it may see that nobody listens while we still begin
            hello = DialerHello(purpose=purpose)
            pass_on(dial(self._loop, host, port, hello, token.encode(), link, timeout_s=timeout_s), connected)

        self._loop.call_soon(call)
        wait_blocking(connected)
        return link


def wait_for(operation: Operation[A], timeout_s: float) -> A:
    """Return the answer. Raises TimeoutError, and what a call fails with (see ``ControlLink.ask``)."""
    done = threading.Event()
    operation.add_callback(lambda _: done.set())
    if not done.wait(timeout_s):
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return outcome(operation)
