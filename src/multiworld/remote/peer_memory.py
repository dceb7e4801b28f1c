"""Read and write the memory of another process of this host, if the kernel allows it.

One process then copies a large tensor once. Over shared memory, each of the two copies it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import Tensor

from ..errors import ProtocolError, ReasonError

MIN_BYTES: Final = 1024 * 1024
"""Smaller tensors go over the channel: it takes them faster than the two processes can agree on an address."""
CHUNK_BYTES: Final = 16 * 1024 * 1024  # of one call: an interrupt waits for its end, and who gives up
MARK_BYTES: Final = 16


class PeerMemoryError(ReasonError):
    """The memory of another process can't be read or written."""


class Mark:
    """Random bytes in this process. Another process reads them to see that it has the right process.

    They stay as long as the other process may use the addresses that it knows.
    """

    def __init__(self) -> None:
        self._bytes = secrets.token_bytes(MARK_BYTES)
        self._memory = ctypes.create_string_buffer(self._bytes, MARK_BYTES)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._memory)

    @property
    def text(self) -> str:
        return self._bytes.hex()

    def show(self, mark: str) -> None:
        """Show these bytes in place of the present ones. Raises ProtocolError for what can't be a mark."""
        try:
            shown = bytes.fromhex(mark)
        except ValueError:
            shown = b""
        if len(shown) != MARK_BYTES:
            raise ProtocolError(f"{mark[:100]!r} is no mark: {MARK_BYTES} bytes in hex are needed")
        ctypes.memmove(self.address, shown, MARK_BYTES)

    def erase(self) -> None:
        """From now on the other process discards what it reads."""
        ctypes.memset(self.address, 0, MARK_BYTES)


class PeerMemory:
    """Any thread. ``mark``: the peer's, in hex; ``mark_at``: its address there."""

    def __init__(self, pid: int, mark: str, mark_at: int) -> None:
        self._pid, self._mark, self._mark_at = pid, mark, mark_at

    @classmethod
    def of(cls, pid: int, host: str, mark: str, mark_at: int) -> PeerMemory | None:
        """Return the memory of a process, if it runs on this host and this one may read it."""
        if _read is None or not mark or host != socket.gethostname():
            return None
        memory = cls(pid, mark, mark_at)
        try:
            memory.check()
        except PeerMemoryError:
            return None
        return memory

    def demand_mark(self) -> str:
        """Return a new mark for the peer to show. Until it does, nothing is written, and what is read does not count.

        A peer that named another process, where it knew some bytes, can't show it there.
        """
        self._mark = secrets.token_hex(MARK_BYTES)
        return self._mark

    def read(self, address: int, target: Tensor) -> None:
        """Copy what is at an address of the peer into a tensor. Raises PeerMemoryError.

        The mark is checked afterwards: without it, the peer may have changed that memory meanwhile.
        """
        for at, size_bytes in _chunks(target):
            self._move(_read, "read", address + at, target.data_ptr() + at, size_bytes)
        self.check()

    def write(self, address: int, source: Tensor, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """Copy a tensor to an address of the peer. Raises PeerMemoryError, also soon after it is given up."""
        self.check()
        for at, size_bytes in _chunks(source):
            if is_given_up():
                raise PeerMemoryError("it was given up")
            self._move(_write, "written", address + at, source.data_ptr() + at, size_bytes)

    def check(self) -> None:
        """Raises PeerMemoryError if the peer is gone, or has erased its mark."""
        found = ctypes.create_string_buffer(MARK_BYTES)
        self._move(_read, "read", self._mark_at, ctypes.addressof(found), MARK_BYTES)
        if found.raw.hex() != self._mark:
            raise PeerMemoryError("it has ended, or is another process")

    def _move(self, move: Any, what: str, theirs: int, ours: int, size_bytes: int) -> None:
        at = 0
        while at < size_bytes:
            left = size_bytes - at
            moved = move(self._pid, _Part(ours + at, left), 1, _Part(theirs + at, left), 1, 0)
            if moved <= 0:
                raise PeerMemoryError(_reason(ctypes.get_errno() if moved else errno.EFAULT, what))
            at += moved


def _chunks(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Yield where each part of one call begins, and its bytes."""
    for at in range(0, tensor.nbytes, CHUNK_BYTES):
        yield at, min(tensor.nbytes - at, CHUNK_BYTES)


class _Part(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t))


def _reason(code: int, what: str) -> str:
    return "it died" if code == errno.ESRCH else f"its memory can't be {what}: {os.strerror(code)}"


def _call_of(name: str) -> Any:
    """Return a call of the C library, which lets go of the interpreter meanwhile; None where there is no such call."""
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is not None:
        parts = (ctypes.POINTER(_Part), ctypes.c_ulong)
        call.restype, call.argtypes = ctypes.c_ssize_t, (ctypes.c_int, *parts, *parts, ctypes.c_ulong)
    return call


_read: Final = _call_of("process_vm_readv")
_write: Final = _call_of("process_vm_writev")
