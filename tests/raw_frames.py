"""Frames read from a plain socket, for tests that speak the protocol themselves."""

from __future__ import annotations

import socket

from multiworld.wire.connection.frames import HEADER, HEADER_BYTES


def hear(sock: socket.socket) -> tuple[int, bytes]:
    """Return kind and meta of the next frame; raises ConnectionError if the other side closes first."""
    header = HEADER.unpack(_read(sock, HEADER_BYTES))
    return header[1], _read(sock, header[3])


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data
