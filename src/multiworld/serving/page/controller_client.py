"""One connection to a controller elsewhere, over which it is asked again and again; dialed when it is needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from ...errors import HandshakeError, ProtocolError, RecordError
from ...wire.addresses import show
from ...wire.handshake import NONCE_BYTES
from ...wire.records import DIALER
from ..errors import DeploymentError
from ..hosts.greeting import DialerGreeting
from ..hosts.spoken_lines import SpokenLines

__all__ = ["ControllerClient"]

CHUNK_BYTES = 64 * 1024


class ControllerClient:
    """One question at a time. What goes wrong ends the connection, and the next question dials anew."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._address, self._token = address, token
        self._connection: _Connection | None = None

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises DeploymentError; cancelled, the connection is given up, as its answer may come."""
        where = show(*self._address)
        connection, self._connection = self._connection, None
        try:
            if connection is None:
                connection = await self._dial()
            answer = await connection.ask(request)
            self._connection, connection = connection, None
        except HandshakeError as error:
            raise DeploymentError(f"the handshake with the controller at {where} failed: {error}") from None
        except RecordError as error:
            raise DeploymentError(f"the answer of the controller at {where} cannot be trusted: {error}") from None
        except ProtocolError as error:
            raise DeploymentError(f"what listens at {where} is no controller: {error}") from None
        except OSError as error:
            raise DeploymentError(f"no controller can be reached at {where}: {error.strerror or error}") from None
        finally:
            if connection is not None:
                connection.abort()
        if "error" in answer:
            raise DeploymentError(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End the connection. Idempotent; another question dials again."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _dial(self) -> _Connection:
        connection = _Connection(*await asyncio.open_connection(*self._address))
        try:
            greeting = DialerGreeting(self._token, "client", os.urandom(NONCE_BYTES))
            proof = greeting.answer(await connection.ask(greeting.hello))
            greeting.check_accepted(await connection.ask(proof))
            connection.authenticate(greeting.key)
        except BaseException:
            connection.abort()
            raise
        return connection


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._lines = SpokenLines()

    def authenticate(self, key: bytes) -> None:
        self._lines.authenticate(key, DIALER)

    async def ask(self, record: Mapping[str, Any]) -> dict[str, Any]:
        self._writer.write(self._lines.say(record))
        while (answer := self._lines.next()) is None:
            chunk = await self._reader.read(CHUNK_BYTES)
            if not chunk:
                raise ConnectionResetError("it closed the connection")
            self._lines.feed(chunk)
        return answer

    def abort(self) -> None:
        self._writer.transport.abort()
