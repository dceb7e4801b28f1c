"""The messages that travel over MPI: each is a piece of one payload, and says of which.

MPI cannot take a message back: one whose world has ended meanwhile is delivered all the same. So a chunk carries
the random key of the stream that it is meant for, and its place there. A process without such a stream drops it.
"""

from __future__ import annotations

import secrets
import struct
from typing import NamedTuple

CHUNK_BYTES = 1024 * 1024
KEY_BYTES = 16
PROOF = 0  # the number of the chunk by which two ranks find each other over MPI; payloads are numbered from 1
MAX_FREE = 8
_HEADER = struct.Struct("<16sQQ")
HEADER_BYTES = 64  # more than it needs, so that data begins on a cache line


class Chunk(NamedTuple):
    """A piece of payload ``number``, from byte ``offset`` on. ``data`` is a view of the buffer that it came in."""

    key: bytes
    number: int
    offset: int
    data: memoryview


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def write_header(buffer: memoryview, key: bytes, number: int, offset: int) -> None:
    _HEADER.pack_into(buffer, 0, key, number, offset)


def read_chunk(message: memoryview) -> Chunk | None:
    """Return what is in a message; None: it is not one of ours."""
    if not HEADER_BYTES <= len(message) <= HEADER_BYTES + CHUNK_BYTES:
        return None
    key, number, offset = _HEADER.unpack_from(message)
    return Chunk(key, number, offset, message[HEADER_BYTES:])


class BufferPool:
    """Memory for chunks, used again: MPI libraries register with the network what they are given, which takes long."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        return self._free.pop() if self._free else memoryview(bytearray(HEADER_BYTES + CHUNK_BYTES))

    def give(self, buffer: memoryview) -> None:
        if len(self._free) < MAX_FREE:
            self._free.append(buffer)

    def clear(self) -> None:
        self._free.clear()
