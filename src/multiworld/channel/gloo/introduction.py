"""What a rank says of itself through the store while Gloo connects, and how to come in the place of the other rank.

Gloo makes one of two ranks wait until the other connects to it, for up to five times its timeout, and nothing makes it
stop: unless somebody comes.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

SOCKADDR_BYTES = 128  # a sockaddr_storage
CONNECT_S = 1.0  # to our own address


class Introduction(NamedTuple):
    """Where a rank listens, and by which number each other rank has to ask for it."""

    family: int
    address: tuple[str, int] | tuple[str, int, int, int]
    numbers: list[int]  # by rank; its own has no use


def read_introduction(data: bytes) -> Introduction:
    """Read what Gloo's TCP transport writes: host name, address and numbers, each behind its length but for the last.

    That is no public format. Raises ValueError for anything else.
    """
    try:
        _, rest = _split(data)
        listener, rest = _split(rest)
        if len(listener) != SOCKADDR_BYTES + 8:
            raise ValueError(f"an address of {len(listener)} bytes")
        numbers = struct.unpack(f"={len(rest) // 8}q", rest)
        return Introduction(*_read_sockaddr(listener), list(numbers))
    except (struct.error, ValueError) as error:
        raise ValueError(f"not what Gloo is known to say: {error}") from error


def come_as(rank: int, introduction: Introduction) -> socket.socket:
    """Connect to the rank that said this, as ``rank`` would; close the socket when that has ended its wait.

    Raises OSError if that cannot be done, ValueError if ``rank`` was given no number.
    """
    if rank >= len(introduction.numbers):
        raise ValueError(f"rank {rank} has none of the {len(introduction.numbers)} numbers")
    sock = socket.socket(introduction.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(introduction.address)
        sock.sendall(struct.pack("=q", introduction.numbers[rank]))
    except BaseException:
        sock.close()
        raise
    return sock


def _split(data: bytes) -> tuple[bytes, bytes]:
    (size,) = struct.unpack_from("=q", data)
    if not 0 <= size <= len(data) - 8:
        raise ValueError(f"a length of {size}")
    return data[8 : 8 + size], data[8 + size :]


def _read_sockaddr(data: bytes) -> tuple[int, tuple[str, int] | tuple[str, int, int, int]]:
    (family,) = struct.unpack_from("=H", data)
    (port,) = struct.unpack_from("!H", data, 2)
    if family == socket.AF_INET:
        return family, (socket.inet_ntop(family, data[4:8]), port)
    if family == socket.AF_INET6:
        (scope,) = struct.unpack_from("=I", data, 24)
        return family, (socket.inet_ntop(family, data[8:24]), port, 0, scope)
    raise ValueError(f"address family {family}")
