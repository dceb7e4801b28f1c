"""Two connections on loopback and what comes through them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from multiworld.testing import scaled, wait_until
from multiworld.wire.connection.connection import Connection
from multiworld.wire.connection.frames import Header, Kind, pack_header
from multiworld.wire.progress.thread import ProgressThread

BACKLOG_BYTES = 64 * 1024 * 1024  # more than any socket takes


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
        try:
            if self.on_frame is not None:
                self.on_frame(header)
        finally:  # last: a test that sees the frame knows that ``on_frame`` has been called
            self.frames.append((header, meta, payload))

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


def clog(sender: Connection, receiver: Connection) -> None:
    """Let ``receiver`` read nothing until it is told to, and ``sender`` have more to write than its socket takes."""
    receiver._interest.set_reading(0)
    payload = bytes(BACKLOG_BYTES)
    sender.send(message(payload), payload)

    def rest_bytes() -> int:
        return sum(len(segment) for outgoing in list(sender._queue._outgoing) for segment in list(outgoing.segments))

    def is_clogged() -> bool:
        before = rest_bytes()
        for _ in range(2):  # so that the progress thread has looked at the socket once, at least
            looked = threading.Event()
            sender.loop.call_soon(looked.set)
            assert looked.wait(scaled(5))
        return sender._interest.writing and rest_bytes() == before

    assert wait_until(is_clogged, timeout_s=10)
