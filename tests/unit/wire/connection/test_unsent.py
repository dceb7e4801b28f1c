"""The kernel takes less of what a connection writes once it has sent much twice, and as much as it likes before."""

from __future__ import annotations

import socket
import struct

import pytest

from multiworld.wire.connection import unsent as module
from multiworld.wire.connection.unsent import LOOK_BYTES, TWICE, UNSENT_BYTES, Unsent

SEGMENT_BYTES_AT, SEGMENTS_SENT_AT, SEGMENTS_TWICE_AT = 16, 156, 216  # in Linux's struct tcp_info
SEGMENTS = 10_000
LIMIT = int(TWICE * SEGMENTS)


class Socket:
    """A connected socket whose kernel has sent ``sent`` segments, ``twice`` of them for nothing."""

    info_bytes, segment_bytes = 232, 1448

    def __init__(self) -> None:
        self.sent = self.twice = self.looks = 0
        self.error: OSError | None = None
        self.limits: list[int] = []

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        self.looks += 1
        info = bytearray(max(size, 256))
        struct.pack_into("=I", info, SEGMENT_BYTES_AT, self.segment_bytes)
        struct.pack_into("=I", info, SEGMENTS_SENT_AT, self.sent % 2**32)
        struct.pack_into("=I", info, SEGMENTS_TWICE_AT, self.twice % 2**32)
        return bytes(info[: min(size, self.info_bytes)])

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        if self.error is not None:
            raise self.error
        self.limits.append(value)


@pytest.fixture
def sock() -> Socket:
    return Socket()


@pytest.fixture
def unsent(sock: Socket) -> Unsent:
    return Unsent(sock)  # type: ignore[arg-type]


def test_it_is_limited_once_when_more_than_a_hundredth_was_sent_twice(sock: Socket, unsent: Unsent) -> None:
    sock.sent, sock.twice = SEGMENTS, LIMIT
    unsent.wrote(LOOK_BYTES)
    assert sock.limits == []
    sock.sent, sock.twice = 2 * SEGMENTS, 2 * LIMIT + 1
    unsent.wrote(LOOK_BYTES)
    assert sock.limits == [UNSENT_BYTES]
    sock.twice += SEGMENTS
    unsent.wrote(LOOK_BYTES)
    assert sock.limits == [UNSENT_BYTES]
    assert sock.looks == 2


def test_what_was_long_ago_does_not_count(sock: Socket, unsent: Unsent) -> None:
    """Counts are compared with those of the last look; they wrap around."""
    sock.sent, sock.twice = 2**32 - 1, 2**32 - 1 - LIMIT
    unsent._sent, unsent._twice = sock.sent, sock.twice
    for _ in range(3):
        sock.sent, sock.twice = sock.sent + SEGMENTS, sock.twice + LIMIT
        unsent.wrote(LOOK_BYTES)
    assert sock.limits == []
    sock.sent, sock.twice = sock.sent + SEGMENTS, sock.twice + LIMIT + 1
    unsent.wrote(LOOK_BYTES)
    assert sock.limits == [UNSENT_BYTES]


def test_it_looks_only_now_and_then(sock: Socket, unsent: Unsent) -> None:
    for _ in range(10):
        unsent.wrote(LOOK_BYTES // 4)
    assert sock.looks == 2


def test_where_it_is_refused_it_is_not_tried_again(sock: Socket, unsent: Unsent) -> None:
    sock.error, sock.sent, sock.twice = PermissionError(), SEGMENTS, SEGMENTS
    for _ in range(3):
        unsent.wrote(LOOK_BYTES)
    assert sock.looks == 1


def test_a_kernel_that_does_not_count_it_is_not_asked_again(sock: Socket, unsent: Unsent) -> None:
    sock.info_bytes, sock.twice = SEGMENTS_TWICE_AT, SEGMENTS
    for _ in range(3):
        unsent.wrote(LOOK_BYTES)
    assert (sock.limits, sock.looks) == ([], 1)


@pytest.mark.parametrize("segment_bytes", [65483, 32741], ids=["used", "new"])
def test_loopback_is_left_alone(sock: Socket, unsent: Unsent, segment_bytes: int) -> None:
    sock.segment_bytes, sock.sent, sock.twice = segment_bytes, SEGMENTS, SEGMENTS
    for _ in range(3):
        unsent.wrote(LOOK_BYTES)
    assert (sock.limits, sock.looks) == ([], 1)


def test_the_counts_of_a_real_connection_are_where_we_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOPBACK_SEGMENT_BYTES", 65536)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        accepted, _ = server.accept()
        with accepted:
            before = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            unsent = Unsent(sock)
            sock.sendall(bytes(1000))
            assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
            unsent.wrote(LOOK_BYTES)
            assert unsent._sent == 1, "as the kernel counts"
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == before
    unsent.wrote(LOOK_BYTES)  # it has ended
