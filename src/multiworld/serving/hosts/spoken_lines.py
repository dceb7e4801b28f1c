"""What the two ends of a controller's connection say: records of JSON, authenticated once they have greeted. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ...wire.records import RecordReader, RecordWriter, records_of
from .greeting import LONGEST_GREETING
from .lines import LONGEST_LINE, LineSplitter, to_line

__all__ = ["SpokenLines"]


class SpokenLines:
    """One end. What it hears is fed in pieces, and taken out record by record."""

    def __init__(self) -> None:
        self._splitter = LineSplitter(LONGEST_GREETING)
        self._unread = bytearray()
        self._heard: deque[dict[str, Any]] = deque()
        self._writer: RecordWriter | None = None
        self._reader: RecordReader | None = None

    def authenticate(self, key: bytes, role: bytes) -> None:
        """Behind the last record of the greeting each way: what is said and heard from now on carries tags."""
        self._writer, self._reader = records_of(key, role)
        self._splitter.longest = LONGEST_LINE

    def say(self, record: Mapping[str, Any]) -> bytes:
        """Return what to send, in this order. Raises TypeError for what is no JSON, ValueError if it is too long."""
        line = to_line(record)
        return line if self._writer is None else self._writer.write(line)

    def feed(self, chunk: bytes) -> None:
        self._unread += chunk

    def next(self) -> dict[str, Any] | None:
        """Return the next record, or None if it is not whole yet. Raises ProtocolError: the connection must end."""
        while not self._heard and self._unread:
            if self._reader is None:  # one line: what stands behind the last of the greeting carries tags already
                end = self._unread.find(b"\n") + 1 or len(self._unread)
                line = bytes(self._unread[:end])
                del self._unread[:end]
                self._heard.extend(self._splitter.feed(line))
            else:
                unread, self._unread = self._unread, bytearray()
                for body in self._reader.read(memoryview(unread)):
                    self._heard.extend(self._splitter.feed(bytes(body)))
        return self._heard.popleft() if self._heard else None
