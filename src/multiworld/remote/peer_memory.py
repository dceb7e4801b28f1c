"""The memory of another process of this host, which this one may read and write, as the kernel allows a parent.

So a large tensor is copied once, by one process, between memory that both have anyway.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import socket
from typing import Any, Final

from torch import Tensor

from ..errors import ReasonError

MIN_BYTES: Final = 1024 * 1024
"""Of a tensor that is copied so. Others are there before the two processes have agreed on an address."""
CHUNK_BYTES: Final = 16 * 1024 * 1024  # of one call: an interrupt waits for its end
MARK_BYTES: Final = 16


class PeerMemoryError(ReasonError):
    """The memory of another process can't be read or written."""


class Mark:
    """Random bytes in this process, by which another one finds that it reads the right memory.

    They are there as long as the other one may use what it was told of.
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

    def erase(self) -> None:
        """From now on what the other process reads does not count."""
        ctypes.memset(self.address, 0, MARK_BYTES)


class PeerMemory:
    """Any thread. ``mark``: the peer's, at ``mark_at``."""

    def __init__(self, pid: int, mark: bytes, mark_at: int) -> None:
        self._pid, self._mark, self._mark_at = pid, mark, mark_at

    @classmethod
    def of(cls, pid: int, host: str, mark: str, mark_at: int) -> PeerMemory | None:
        """Return the memory of a process, if it runs on this host and this one may read it."""
        if _read is None or not mark or host != socket.gethostname():
            return None
        memory = cls(pid, bytes.fromhex(mark), mark_at)
        try:
            memory.check()
        except PeerMemoryError:
            return None
        return memory

    def read(self, address: int, target: Tensor) -> None:
        """Copy what is at an address of the peer into a tensor. Raises PeerMemoryError.

        What was read counts only if the peer still stands by its addresses afterwards.
        """
        self._move(_read, "read", address, target.data_ptr(), target.nbytes)
        self.check()

    def write(self, address: int, source: Tensor) -> None:
        """Copy a tensor to an address of the peer. Raises PeerMemoryError."""
        self.check()
        self._move(_write, "written", address, source.data_ptr(), source.nbytes)

    def check(self) -> None:
        """Raises PeerMemoryError if the peer is gone, or does not stand by its addresses any more."""
        found = ctypes.create_string_buffer(MARK_BYTES)
        self._move(_read, "read", self._mark_at, ctypes.addressof(found), MARK_BYTES)
        if found.raw != self._mark:
            raise PeerMemoryError("it has ended, or is another process")

    def _move(self, move: Any, what: str, theirs: int, ours: int, size_bytes: int) -> None:
        at = 0
        while at < size_bytes:
            part = min(size_bytes - at, CHUNK_BYTES)
            moved = move(self._pid, _Part(ours + at, part), 1, _Part(theirs + at, part), 1, 0)
            if moved <= 0:
                raise PeerMemoryError(_reason(ctypes.get_errno() if moved else errno.EFAULT, what))
            at += moved


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
