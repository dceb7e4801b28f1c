"""The kernel holds back little of what a paced connection writes, and as much as it likes of all others."""

from __future__ import annotations

import socket

import pytest

from multiworld.wire.unsent import UNSENT_BYTES, keep_unsent_short

ETHERNET, LOOPBACK, NEW_ON_LOOPBACK = 1448, 65483, 32741


class Socket:
    """A connected socket of which only the options matter."""

    def __init__(self, congestion: bytes, segment_bytes: int, error: OSError | None = None) -> None:
        self._options = {socket.TCP_CONGESTION: congestion.ljust(16, b"\0"), socket.TCP_MAXSEG: segment_bytes}
        self._error = error
        self.was_set: dict[int, int] = {}

    def getsockopt(self, level: int, option: int, _: int = 0) -> object:
        assert level == socket.IPPROTO_TCP
        return self._options[option]

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert level == socket.IPPROTO_TCP
        if self._error is not None:
            raise self._error
        self.was_set[option] = value


@pytest.mark.parametrize(
    ("congestion", "segment_bytes", "is_short"),
    [
        (b"bbr", ETHERNET, True),
        (b"bbr2", 8948, True),
        (b"bbr", LOOPBACK, False),
        (b"bbr", NEW_ON_LOOPBACK, False),
        (b"cubic", ETHERNET, False),
        (b"reno", ETHERNET, False),
    ],
)
def test_only_what_is_paced_over_a_network_is_kept_short(congestion: bytes, segment_bytes: int, is_short: bool) -> None:
    sock = Socket(congestion, segment_bytes)
    keep_unsent_short(sock)  # type: ignore[arg-type]
    assert sock.was_set == ({socket.TCP_NOTSENT_LOWAT: UNSENT_BYTES} if is_short else {})


def test_where_it_is_refused_all_stays_as_it_was() -> None:
    sock = Socket(b"bbr", ETHERNET, PermissionError())
    keep_unsent_short(sock)  # type: ignore[arg-type]
    assert sock.was_set == {}


def test_a_connection_on_loopback_keeps_what_the_system_gave_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        before = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        keep_unsent_short(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == before


def test_a_connection_that_has_ended_is_left_alone() -> None:
    with socket.socket() as sock:
        keep_unsent_short(sock)
    keep_unsent_short(sock)  # closed
