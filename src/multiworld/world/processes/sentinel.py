"""Own one tiny child process that tells peers on other hosts whether this process runs, also while it cannot itself.

A process that holds its interpreter lock for ten seconds sends no heartbeat, and nobody can read its ``/proc`` from
another host. Its sentinel can, and answers authenticated datagrams.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess

from ..liveness import Vital
from . import sentinel_program
from .kept_process import start_program

DATAGRAM_BYTES = sentinel_program.DATAGRAM_BYTES
NONCE_BYTES = sentinel_program.NONCE_BYTES


def encode_query(nonce: bytes, token: bytes) -> bytes:
    """Return the datagram that asks a sentinel for its process's state; use each nonce once."""
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"nonce must have {NONCE_BYTES} bytes, got {len(nonce)}")
    return sentinel_program.encode_query(nonce, sentinel_program.derive_key(token))


def decode_reply(data: bytes, nonce: bytes, token: bytes) -> Vital | None:
    """Return the answer to the query with this nonce, or None if the datagram is anything else."""
    state = sentinel_program.decode_reply(data, nonce, sentinel_program.derive_key(token))
    return None if state is None else Vital(state)


def nonce_of(data: bytes) -> bytes:
    """Return the nonce in a reply, to look up the query that it may answer; only ``decode_reply`` verifies it."""
    return data[8:24]


class Sentinel:
    """The running child. It ends when closed, or with this process, however this process ends.

    Ports are used again: a ``token`` that includes something of this process alone (the job token followed by its
    incarnation) keeps a successor on the same port from answering for it.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._owner = os.getpid()
        self.port = port

    @classmethod
    def start(cls, host: str, token: bytes, *, port: int = 0) -> Sentinel:
        """Bind a UDP port on a numeric local address and start the child, without waiting until it is up.

        Queries that arrive earlier are answered once it is. ``port``: the wished one, which a predecessor had; another
        one if that is taken. Raises ``OSError`` if the address is not this machine's, or no process can be started.
        """
        with _bound(host, port) as sock:
            sentinel = cls(_start(sock.fileno()), sock.getsockname()[1])
        try:
            assert sentinel._process.stdin is not None
            sentinel._process.stdin.write(sentinel_program.derive_key(token))
        except OSError:
            sentinel.close()
            raise
        return sentinel

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child still runs. If someone killed it, ``close`` this sentinel and start another."""
        return self._process.poll() is None

    def close(self) -> None:
        """End and reap the child. Idempotent; takes milliseconds."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if os.getpid() == self._owner:  # a forked copy of this object must not end its parent's sentinel
            self._process.kill()
            self._process.wait()


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST | socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        if port == 0 or error.errno != errno.EADDRINUSE:
            raise
        return _bound(host, 0)
    return sock


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    return start_program(sentinel_program.__file__, str(os.getpid()), str(descriptor), descriptors=(descriptor,))
