"""The sentinel's child: answers over UDP whether its parent process runs. Standard library only; ends with its parent.

Started as ``python -I -S sentinel_program.py PARENT_PID SOCKET_DESCRIPTOR``, the key on standard input. Imported by
``sentinel.py`` for the datagrams, which both sides share::

    query   magic 4 | zeros 4       | nonce 16 | HMAC-SHA256 of what precedes 32
    reply   magic 4 | state 1, zeros 3 | nonce 16 | HMAC-SHA256 of what precedes 32
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # -I leaves the script's own folder out
    from procfs import EXITED, RUNNING, STOPPED, process_start_time, process_state  # type: ignore[import-not-found]
else:
    from .procfs import EXITED, RUNNING, STOPPED, process_start_time, process_state

KEY_BYTES = 32
NONCE_BYTES = 16
DATAGRAM_BYTES = 56
_QUERY, _REPLY = b"MWq1", b"MWr1"
_STATES = {RUNNING: b"R\0\0\0", STOPPED: b"T\0\0\0", EXITED: b"X\0\0\0"}


def derive_key(token: bytes) -> bytes:
    """Return the key of the datagrams, so that the child need not hold the token itself."""
    return hmac.digest(token, b"multiworld sentinel 1", "sha256")


def encode(magic: bytes, word: bytes, nonce: bytes, key: bytes) -> bytes:
    """Return one datagram; the magic, being authenticated too, keeps a query from passing as a reply."""
    body = magic + word + nonce
    return body + hmac.digest(key, body, "sha256")


def decode(data: bytes, magic: bytes, key: bytes) -> tuple[bytes, bytes] | None:
    """Return (word, nonce) of a datagram, or None if it is not ours."""
    if len(data) != DATAGRAM_BYTES or data[:4] != magic:
        return None
    if not hmac.compare_digest(data[24:], hmac.digest(key, data[:24], "sha256")):
        return None
    return data[4:8], data[8:24]


def encode_query(nonce: bytes, key: bytes) -> bytes:
    return encode(_QUERY, bytes(4), nonce, key)


def decode_reply(data: bytes, nonce: bytes, key: bytes) -> str | None:
    """Return the state in the reply to the query with this nonce, or None."""
    decoded = decode(data, _REPLY, key)
    if decoded is None or decoded[1] != nonce:
        return None
    return next((state for state, word in _STATES.items() if word == decoded[0]), None)


def answer(sock: socket.socket, key: bytes, pid: int, start_time: int) -> None:
    """Answer one datagram, if it is a query of someone who knows the token."""
    try:
        data, address = sock.recvfrom(DATAGRAM_BYTES + 1)
        query = decode(data, _QUERY, key)
        word = _STATES.get(process_state(pid, start_time)) if query is not None else None
        if query is not None and word is not None:
            sock.sendto(encode(_REPLY, word, query[1], key), address)
    except OSError:  # a datagram may be lost on its way as well: the peer asks again
        return


def main(pid: int, descriptor: int) -> None:
    os.setpgid(0, 0)  # what stops or ends the parent's process group must not silence the one who reports it
    key = b""
    while len(key) < KEY_BYTES:
        more = os.read(0, KEY_BYTES - len(key))
        if not more:
            return
        key += more
    pidfd = open_pidfd(pid)
    start_time = process_start_time(pid)
    if os.getppid() != pid or start_time is None:  # checked last: while it is our parent, its pid is no one else's
        return
    poller = select.poll()
    for watched in (0, descriptor) if pidfd is None else (0, descriptor, pidfd):
        poller.register(watched, select.POLLIN)
    with socket.socket(fileno=descriptor) as sock:
        sock.setblocking(False)
        while os.getppid() == pid:
            # Standard input ends with the parent, unless a process that it forked holds the other end: hence the pidfd,
            # and where there is none, a look every second.
            ready = [fd for fd, _ in poller.poll(None if pidfd is not None else 1000)]
            if 0 in ready or pidfd in ready:
                return
            if ready:
                answer(sock, key, pid, start_time)


def open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
