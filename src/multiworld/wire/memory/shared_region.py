"""Anonymous memory that two processes share: it has no name, belongs to those who map it, and ends with them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any

from .copying import copy_into, memory_at

if TYPE_CHECKING:
    from torch import Tensor

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MFD_NOEXEC_SEAL = 0x8  # from Linux 6.3, where a memfd that could be executed may be forbidden
PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
MAP_FAILED = ctypes.c_void_p(-1).value

# Python's own mmap keeps a descriptor for as long as the mapping lives.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class SharedRegion:
    """A mapping of a sealed memfd. It is unmapped with its last reference, so never while one copies.

    The seals fix its size: a process that holds it cannot make the others fail by truncating it. Pages take memory
    once they are written.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        """Map a descriptor, which stays the caller's; raises OSError unless it is such memory of exactly that size."""
        self.address = 0
        if os.fstat(descriptor).st_size != size_bytes or fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise OSError(f"not {size_bytes} bytes of sealed memory")
        address = _libc.mmap(None, size_bytes, PROTECTION, mmap.MAP_SHARED, descriptor, 0)
        if address == MAP_FAILED:
            raise _os_error()
        self.address, self.size_bytes = address, size_bytes
        self._view = memory_at(address, size_bytes)
        self._array_type: Any = ctypes.c_char * size_bytes

    @classmethod
    def create(cls, size_bytes: int) -> tuple[SharedRegion, int]:
        """Return new memory and the descriptor to hand over, which the caller closes; raises OSError."""
        descriptor = _memfd()
        try:
            os.ftruncate(descriptor, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            return cls(descriptor, size_bytes), descriptor
        except OSError:
            os.close(descriptor)
            raise

    def write(self, offset: int, source: memoryview) -> None:
        copy_into(self._view[offset : offset + len(source)], source)

    def read(self, offset: int, target: memoryview) -> None:
        copy_into(target, self._view[offset : offset + len(target)])

    def tensor(self, offset: int, size_bytes: int) -> Tensor:
        """Return a part of it as ``[size_bytes]`` uint8, which holds the region."""
        import torch  # not above: the host processes of serving map such memory, and do without

        return torch.frombuffer(self.array(self), dtype=torch.uint8, count=size_bytes, offset=offset)

    def array(self, keeper: object) -> Any:
        """Return all of it as an object with a buffer; it holds ``keeper``, which is to hold the region."""
        array = self._array_type.from_address(self.address)
        array.keeper = keeper
        return array

    def forget(self, offset: int, size_bytes: int) -> None:
        """Give the pages back that are whole in this part, for all who map them.

        They read as zeros until they are written again.
        """
        begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE  # madvise itself would round it up
        if begin < end:
            _libc.madvise(self.address + begin, end - begin, mmap.MADV_REMOVE)

    def __del__(self) -> None:
        if self.address:
            self._view.release()
            _libc.munmap(self.address, self.size_bytes)


def _memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("multiworld", flags | MFD_NOEXEC_SEAL)
    except OSError:  # an older kernel does not know the flag
        return os.memfd_create("multiworld", flags)


def _os_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
