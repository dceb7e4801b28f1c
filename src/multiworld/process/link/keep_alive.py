"""Have the kernel find out when the other host, or the way to it, is gone."""

from __future__ import annotations

import socket

__all__ = ["keep_alive"]

IDLE_S, INTERVAL_S, PROBES = 1, 1, 3
UNREACHABLE_MS = 4000


def keep_alive(sock: socket.socket) -> None:
    """Lose the connection about 4 s after the peer's host stopped answering; and send small records at once."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREACHABLE_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
