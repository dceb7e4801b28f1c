"""Write to a place that somebody reads, such as a console, without waiting for that reader, or for so long only."""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from contextlib import suppress
from typing import TextIO

WRITE_BYTES = select.PIPE_BUF  # what a pipe that polls writable takes without blocking


class Outlet:
    """A copy of a stream's descriptor: it stays open when others close theirs."""

    def __init__(self, stream: TextIO) -> None:
        """Raises ValueError for a stream that has no descriptor, such as one in memory."""
        descriptor = find_descriptor(stream)
        if descriptor is None:
            raise ValueError(f"{stream!r} has no descriptor")
        stream.flush()  # what was printed before comes before
        self.fd = _own_descriptor(descriptor)
        self._socket = socket.socket(fileno=self.fd) if stat.S_ISSOCK(os.fstat(self.fd).st_mode) else None

    def write_some(self, data: bytes) -> int:
        """Write the beginning, and return its length. Raises BlockingIOError if nothing is taken now, or OSError."""
        if not self.wait_writable(0.0):
            raise BlockingIOError
        part = data[:WRITE_BYTES]
        if len(data) > WRITE_BYTES:  # at the end of a line, for who else writes there
            part = part[: part.rfind(b"\n") + 1] or part
        if self._socket is not None:  # it cannot be opened anew, so only each call can be told not to block
            return self._socket.send(part, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return os.write(self.fd, part)

    def write(self, data: bytes, timeout_s: float) -> bytes:
        """Write all that is taken in that time, and return the rest. Raises OSError if nobody can read it any more."""
        until = time.monotonic() + timeout_s
        while data:
            try:
                data = data[self.write_some(data) :]
            except BlockingIOError:
                if not self.wait_writable(until - time.monotonic()):
                    break
        return data

    def wait_writable(self, timeout_s: float) -> bool:
        """Also if there is an error, which the next write tells."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        else:
            os.close(self.fd)


def tell(stream: TextIO | None, text: str, timeout_s: float) -> None:
    """Write text to a stream, or what its reader takes of it in that time; nothing if there is no reader any more.

    None is what ``sys.stderr`` is in a process that was started without one.
    """
    if stream is None:
        return
    try:
        outlet = Outlet(stream)
    except OSError:  # its reader went away, with something still unwritten
        return
    except ValueError:
        with suppress(OSError, ValueError):  # in memory; ValueError: it is closed
            stream.write(text)
            stream.flush()
        return
    try:
        with suppress(OSError):
            outlet.write(text.encode(stream.encoding or "utf-8", "backslashreplace"), timeout_s)
    finally:
        outlet.close()


def find_descriptor(stream: TextIO | None) -> int | None:
    try:
        descriptor = None if stream is None else stream.fileno()
        if descriptor is not None:
            os.fstat(descriptor)
    except (OSError, ValueError, AttributeError):  # a text stream in memory, or one that is closed
        return None
    return descriptor


def _own_descriptor(descriptor: int) -> int:
    """Return one that does not block if that is possible."""
    if os.isatty(descriptor) or stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with suppress(OSError):  # opened anew, because O_NONBLOCK would hold for all who share what it was copied from
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(descriptor)
