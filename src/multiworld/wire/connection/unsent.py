"""How much of what was written may wait in the kernel to be sent, where the kernel sends much of it twice.

A congestion control that paces (BBR) sends by a timer what the window of the peer would let go at once. Over a virtual
interface, both of whose ends are in one machine, what the timer sends on one core and what a writer or an
acknowledgement lets go on another overtake each other; what is out of order is taken for lost and sent again. The peer
says so (D-SACK, RFC 2883), and the kernel counts it. With little that waits for the timer it does not happen: see
docs/decisions/014-short-unsent-queue.md.
"""

from __future__ import annotations

import math
import socket
import struct

UNSENT_BYTES = 384 * 1024
LOOK_BYTES = 16 * 1024 * 1024  # are written between two looks at the kernel's counts
TWICE = 0.01  # of all segments: a probe for a lost tail now and then is less
TCP_INFO_BYTES = 232
COUNTS = struct.Struct("=16xI136xI56xI")
"""Of Linux's struct tcp_info: tcpi_snd_mss, tcpi_data_segs_out, and tcpi_dsack_dups, which is there since 4.19."""
LOOPBACK_SEGMENT_BYTES = 16 * 1024  # larger ones are loopback's, which loses a tenth by waiting for us more often
MASK = 2**32 - 1


class Unsent:
    """What waits in one TCP socket. Used with the write side held."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._due_bytes: float = LOOK_BYTES
        self._sent = self._twice = 0

    def wrote(self, num_bytes: int) -> None:
        """So much was written. Now and then: if the kernel has sent much twice, have it take less from us at a time."""
        self._due_bytes -= num_bytes
        if self._due_bytes <= 0:
            self._due_bytes = LOOK_BYTES
            try:
                self._look()
            except (OSError, struct.error):  # a sandbox, an older kernel, or the connection has just ended
                self._due_bytes = math.inf

    def _look(self) -> None:
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        segment_bytes, sent, twice = COUNTS.unpack_from(info)
        if segment_bytes > LOOPBACK_SEGMENT_BYTES:
            self._due_bytes = math.inf
        elif (twice - self._twice) & MASK > TWICE * ((sent - self._sent) & MASK):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            self._due_bytes = math.inf
        self._sent, self._twice = sent, twice
