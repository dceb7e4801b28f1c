"""Typed messages over a stream of bytes between two processes of one user, one on each line. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from ....errors import ProtocolError
from ....wire.messages import MAX_BYTES, MessageSet

M = TypeVar("M")


def to_line(messages: MessageSet[M], message: M) -> bytes:
    """Raises ValueError if it is too long."""
    return messages.encode(message) + b"\n"


class LineSplitter(Generic[M]):
    """Cuts what comes into messages."""

    def __init__(self, messages: MessageSet[M], longest: int = MAX_BYTES) -> None:
        self._messages, self._longest = messages, longest
        self._partial = bytearray()
        self._looked_at = 0

    def feed(self, chunk: bytes) -> list[M]:
        """Return the messages that are whole now.

        Raises ProtocolError for a line that is too long, and MessageError for one that holds none of the messages.
        """
        self._partial += chunk
        messages = []
        while (end := self._partial.find(b"\n", self._looked_at)) >= 0:
            if end > self._longest:
                break
            messages.append(self._messages.decode(self._partial[:end]))
            del self._partial[: end + 1]
            self._looked_at = 0
        self._looked_at = len(self._partial)
        if self._looked_at > self._longest:
            raise ProtocolError(f"a line is longer than {self._longest} bytes")
        return messages
