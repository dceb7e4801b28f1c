"""Two connections on loopback and what comes through them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from multiworld.testing import wait_until
from multiworld.wire.connection import Connection
from multiworld.wire.frames import Header, Kind, pack_header
from multiworld.wire.progress import ProgressThread

__all__ = ["Pair", "Sink", "connected_pair", "message"]


class Sink:
    """Keeps what comes; ``on_frame`` may raise."""

    def __init__(self) -> None:
        self.frames: list[tuple[Header, bytes, bytes]] = []
        self.lost_reasons: list[str] = []
        self.on_frame: Callable[[Header], None] | None = None
        self._buffer = bytearray()

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        self._buffer = bytearray(header.payload_bytes)
        return memoryview(self._buffer) if header.payload_bytes else None

    def end(self, header: Header, meta: bytes) -> None:
        payload = bytes(self._buffer) if header.payload_bytes else b""
        self.frames.append((header, meta, payload))
        if self.on_frame is not None:
            self.on_frame(header)

    def lost(self, reason: str) -> None:
        self.lost_reasons.append(reason)


class Pair:
    """Two connected connections on one progress thread."""

    def __init__(self, loop: ProgressThread) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            left = socket.create_connection(server.getsockname())
            right, _ = server.accept()
        self.loop = loop
        self.left_sink, self.right_sink = Sink(), Sink()
        self.left, self.right = Connection(loop, left, self.left_sink), Connection(loop, right, self.right_sink)

    def received(self, count: int) -> list[tuple[Header, bytes, bytes]]:
        assert wait_until(lambda: len(self.right_sink.frames) >= count, timeout_s=20), len(self.right_sink.frames)
        return self.right_sink.frames


@contextmanager
def connected_pair() -> Iterator[Pair]:
    """Both ends are closed in the end, and their thread has stopped."""
    loop = ProgressThread("test-connection")
    pair = Pair(loop)
    yield pair
    pair.left.abort()
    pair.right.abort()
    loop.stop()


def message(payload: bytes | bytearray, seq: int = 0, meta: bytes = b"") -> bytes:
    return pack_header(Kind.MESSAGE, meta_bytes=len(meta), payload_bytes=len(payload), seq=seq) + meta
