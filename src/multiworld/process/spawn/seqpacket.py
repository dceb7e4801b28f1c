"""Small messages and descriptors over a Unix socket that keeps the bounds of messages."""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Sequence

LARGEST = 1 << 16
MOST_DESCRIPTORS = 4


def connected_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, content: bytes, fds: Sequence[int] = ()) -> None:
    """Send one message, with copies of descriptors. Raises BlockingIOError, or BrokenPipeError after the peer's end."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        channel.sendmsg([content], rights, socket.MSG_NOSIGNAL)
    except ConnectionResetError as error:  # it ended without having read all
        raise BrokenPipeError(*error.args) from error


def receive(channel: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return one message and its descriptors, which are the caller's to close, or None after the peer's end."""
    space = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
    try:
        content, ancillary, _, _ = channel.recvmsg(LARGEST, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # it ended without having read all
        return None
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return (content, list(fds)) if content else None


def is_readable(channel: socket.socket, timeout_s: float = 0.0) -> bool:
    """Return whether a message, or the peer's end, is there within this time."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def sealed(content: bytes) -> int:
    """Return a descriptor of a file in memory: what is too long for a message goes by it."""
    fd = os.memfd_create("multiworld-launch", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
