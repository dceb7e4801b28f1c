"""How much of what was written may wait in the kernel to be sent, where a timer of the kernel sends it.

Congestion controls that pace (BBR) send by a timer what the window of the peer would let go at once. Over a virtual
interface, on whose two ends are cores of one machine, what the timer sends on one core and what acknowledgements let go
on another overtake each other; out of order, it is taken for lost and sent again: 6 to 8 % of all packets, and a third
of the throughput (docs/decisions/014-short-unsent-queue.md). With little to be sent by the timer it does not happen.
"""

from __future__ import annotations

import socket

__all__ = ["UNSENT_BYTES", "keep_unsent_short"]

UNSENT_BYTES = 384 * 1024
LOOPBACK_SEGMENT_BYTES = 16 * 1024  # larger segments are loopback's, where it costs a tenth instead
PACING = b"bbr"
NAME_BYTES = 16


def keep_unsent_short(sock: socket.socket) -> None:
    """Have the kernel take less from us at a time, if that helps the throughput of this connected TCP socket."""
    try:
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES)
        segment_bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        if name.startswith(PACING) and segment_bytes < LOOPBACK_SEGMENT_BYTES:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    except OSError:  # a sandbox, or the connection has just ended
        return
