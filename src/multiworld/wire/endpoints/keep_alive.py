"""Have the kernel find out when the other host, or the way to it, is gone."""

from __future__ import annotations

import socket

IDLE_S, INTERVAL_S = 1, 1


def keep_alive(sock: socket.socket, *, num_probes: int, unreachable_s: float) -> None:
    """Lose the TCP connection when the peer's host has not answered so many probes, one a second.

    Also lose it when what was sent to that host was not acknowledged for ``unreachable_s``.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, num_probes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unreachable_s * 1000))
