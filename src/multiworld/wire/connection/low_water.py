"""How much of a large payload the kernel collects before it wakes the reader.

A reader that is as fast as the sender is else woken for each few packets, and looks more than it copies: on loopback
that took a quarter of the throughput. The end of the stream, and a full buffer, wake it anyway.
"""

from __future__ import annotations

import socket
from typing import Final

MARK_BYTES: Final = 256 * 1024  # more comes more slowly over a veth pair than a reader looks for it (``payload_wait``)
LEAST_BYTES: Final = 128 * 1024  # of a rest that it is worth a system call for


class LowWater:
    """The mark of one TCP socket. Used with the read side held."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._mark = 1
        self._refused = False

    def expect(self, rest_bytes: int) -> None:
        """So much of a payload is still to come; 0: anything that comes next is news."""
        mark = min(rest_bytes, MARK_BYTES)
        if mark < LEAST_BYTES:
            mark = 1
        if mark != self._mark and not self._refused:
            self._mark = mark
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
            except OSError:  # a sandbox: it works without, too
                self._refused = True
