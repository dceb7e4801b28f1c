"""Authenticate what the ends of a connection say to each other after the handshake. Pure: bytes in, bytes out.

A stream is cut into records, each with a tag in front::

    0        4         20
    | length | tag     | body … |
    | u32    | 16 B    |        |

The tag is an HMAC-SHA256, cut to 16 bytes, over the number of the record in its direction (u64), its length and its
body. The key is made of that of the handshake and the direction. So what was changed, put in, repeated, left out or put
in another order on the way does not verify, nor does what is sent back to who said it; the stream ends there with a
RecordError. Nothing of a record is handed on before all of it has verified. A length that has grown is noticed when so
much has come; until then the stream is held up, which whoever can change it can do anyway. Its end carries no tag
either: what must not end early says so in its last record. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from ...errors import RecordError

DIALER: Final = b"dialer"
ACCEPTOR: Final = b"acceptor"
LENGTH: Final = struct.Struct("<I")
NUMBER: Final = struct.Struct("<QI")  # with the length
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = LENGTH.size + TAG_BYTES
MAX_BODY_BYTES: Final = 64 * 1024 - OVERHEAD_BYTES  # a whole record fits into what is read at once


class _Direction:
    """The key of what one end says, and how many records it has said."""

    def __init__(self, key: bytes, role: bytes) -> None:
        if not key:
            raise ValueError("records need the key of a handshake")
        direction = hmac.digest(key, b"multiworld:records:" + role, "sha256")
        self._keyed = hmac.new(direction, digestmod="sha256")
        self.number = 0

    def tag(self, segments: Iterable[bytes | memoryview], length: int) -> bytes:
        """Return the tag of the next record."""
        mac = self._keyed.copy()
        mac.update(NUMBER.pack(self.number, length))
        for segment in segments:
            mac.update(segment)
        self.number += 1
        return mac.digest()[:TAG_BYTES]


class RecordWriter:
    """The saying end. ``role``: whether it has dialed or accepted the connection."""

    def __init__(self, key: bytes, role: bytes) -> None:
        self._direction = _Direction(key, role)

    def head(self, segments: list[memoryview]) -> bytes:
        """Return what goes in front of these, which are the body of one record: of 1 to ``MAX_BODY_BYTES``."""
        length = sum(map(len, segments))
        assert 0 < length <= MAX_BODY_BYTES
        return LENGTH.pack(length) + self._direction.tag(segments, length)

    def write(self, data: bytes) -> bytes:
        """Return the records of some bytes."""
        view = memoryview(data)
        parts: list[bytes | memoryview] = []
        for start in range(0, len(view), MAX_BODY_BYTES):
            body = view[start : start + MAX_BODY_BYTES]
            parts += [self.head([body]), body]
        return b"".join(parts)


class RecordReader:
    """The hearing end; ``role``: that of the other end."""

    def __init__(self, key: bytes, role: bytes) -> None:
        self._direction = _Direction(key, role)
        self._partial = bytearray()

    def read(self, data: memoryview) -> Iterator[memoryview]:
        """Yield the bodies that are whole now, valid until the next one is asked for. Raises RecordError."""
        position = 0
        if self._partial:
            position = self._complete(data)
            if position < 0:
                return
            record, self._partial = self._partial, bytearray()
            yield self._verified(memoryview(record))
        while len(data) - position >= OVERHEAD_BYTES:
            end = position + OVERHEAD_BYTES + self._length(data[position:])
            if end > len(data):
                break
            yield self._verified(data[position:end])
            position = end
        self._partial += data[position:]

    def _complete(self, data: memoryview) -> int:
        """Take what the incomplete record still misses; return how much that was, or -1 if it is not all there."""
        taken = 0
        if len(self._partial) < OVERHEAD_BYTES:
            taken = min(OVERHEAD_BYTES - len(self._partial), len(data))
            self._partial += data[:taken]
            if len(self._partial) < OVERHEAD_BYTES:
                return -1
        missing = OVERHEAD_BYTES + self._length(self._partial) - len(self._partial)
        self._partial += data[taken : taken + missing]
        return -1 if len(data) - taken < missing else taken + missing

    def _length(self, record: memoryview | bytearray) -> int:
        (length,) = LENGTH.unpack_from(record)
        if not 0 < length <= MAX_BODY_BYTES:
            raise RecordError(self._direction.number)
        return int(length)

    def _verified(self, record: memoryview) -> memoryview:
        number, body = self._direction.number, record[OVERHEAD_BYTES:]
        tag = self._direction.tag([body], len(body))
        if not hmac.compare_digest(tag, record[LENGTH.size : OVERHEAD_BYTES]):
            raise RecordError(number)
        return body


def records_of(key: bytes, role: bytes) -> tuple[RecordWriter, RecordReader]:
    """Return what one end of a connection writes and reads with; ``role``: its own."""
    return RecordWriter(key, role), RecordReader(key, ACCEPTOR if role == DIALER else DIALER)
