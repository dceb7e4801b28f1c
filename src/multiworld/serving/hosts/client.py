"""Ask a controller one question from any process: the command line's end. Blocking; imports no torch by itself."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import HandshakeError, ProtocolError, RecordError
from ...wire.addresses import family_of, show
from ...wire.records import DIALER
from ..errors import DeploymentError
from .greeting import DialerGreeting
from .spoken_lines import SpokenLines

__all__ = ["ask", "conversation"]

NONCE_BYTES = 16
CHUNK_BYTES = 64 * 1024
SOCKET_TYPE = socket.SOCK_STREAM | socket.SOCK_CLOEXEC


def ask(address: tuple[str, int], token: str, request: Mapping[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
    """Return the controller's answer. Raises DeploymentError, which says why there is none, or what was refused."""
    with conversation(address, token, timeout_s) as ask_it:
        return ask_it(request)


@contextmanager
def conversation(
    address: tuple[str, int], token: str, timeout_s: float = 30.0
) -> Iterator[Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """Dial a controller, and give what asks it again and again, for ``timeout_s`` each time. Raises DeploymentError."""
    where = show(*address)
    greeting = DialerGreeting(token, "client", os.urandom(NONCE_BYTES))
    with socket.socket(family_of(address[0]), SOCKET_TYPE) as sock:
        exchange = _Exchange(sock, time.monotonic() + timeout_s)
        with _explained(where, timeout_s):
            exchange.connect(address)
            proof = greeting.answer(exchange.ask(greeting.hello))
            greeting.check_accepted(exchange.ask(proof))
        exchange.authenticate(greeting.key)
        has_asked = False

        def ask_it(request: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal has_asked
            if has_asked:
                exchange.extend(time.monotonic() + timeout_s)
            has_asked = True
            with _explained(where, timeout_s):
                answer = exchange.ask(request)
            if "error" in answer:
                raise DeploymentError(str(answer["error"]))
            return answer

        yield ask_it


@contextmanager
def _explained(where: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise DeploymentError(f"the controller at {where} did not answer within {timeout_s:g} s") from None
    except HandshakeError as error:
        raise DeploymentError(f"the handshake with the controller at {where} failed: {error}") from None
    except RecordError as error:
        raise DeploymentError(f"the answer of the controller at {where} cannot be trusted: {error}") from None
    except ProtocolError as error:
        raise DeploymentError(f"what listens at {where} is no controller: {error}") from None
    except OSError as error:
        raise DeploymentError(f"no controller can be reached at {where}: {error.strerror or error}") from None


class _Exchange:
    """Records over a socket, until a point in time. Raises TimeoutError after that."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until
        self._lines = SpokenLines()

    def connect(self, address: tuple[str, int]) -> None:
        self._limit()
        self._sock.connect(address)

    def extend(self, until: float) -> None:
        """Go on, until another point in time."""
        self._until = until

    def authenticate(self, key: bytes) -> None:
        self._lines.authenticate(key, DIALER)

    def ask(self, record: Mapping[str, Any]) -> dict[str, Any]:
        self._limit()
        self._sock.sendall(self._lines.say(record))
        while (answer := self._lines.next()) is None:
            self._limit()
            chunk = self._sock.recv(CHUNK_BYTES)
            if not chunk:
                raise ConnectionResetError("it closed the connection")
            self._lines.feed(chunk)
        return answer

    def _limit(self) -> None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
