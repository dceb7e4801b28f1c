"""Copy memory without stopping other Python threads, however much it is."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Final

from ... import native

SMALL_BYTES: Final = 64 * 1024
ALIGNMENT: Final = 64  # of vectors
_make_view = ctypes.pythonapi.PyMemoryView_FromMemory
_make_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_make_view.restype = ctypes.py_object
_WRITABLE: Final = 0x200
_copy: Callable[[int, int, int], object] = ctypes.memmove
if native.core is not None:
    _copy = native.core.multiworld_copy
    _copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    _copy.restype = None


def memory_at(address: int, size_bytes: int) -> memoryview:
    """Return some memory of this process, writable. The caller keeps it alive."""
    return _make_view(address, size_bytes, _WRITABLE)  # type: ignore[no-any-return]


def aligned_memory(size_bytes: int) -> memoryview:
    """Return new memory, writable, that begins at a multiple of ``ALIGNMENT``, as a tensor's does. The view keeps it.

    It is made faster than a tensor is, above all by a process that has just woken up.
    """
    memory = memoryview(bytearray(size_bytes + ALIGNMENT - 1))
    begin = -address_of(memory) % ALIGNMENT
    return memory[begin : begin + size_bytes]


def copy_into(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of ``source``, which is writable, over those of ``target``, as long as it."""
    if len(source) <= SMALL_BYTES:
        target[:] = source
        return
    copy_memory(address_of(target), address_of(source), len(source))  # an assignment would keep the interpreter lock


def copy_memory(target: int, source: int, size_bytes: int) -> None:
    """Copy from one address to another, where that does not overlap.

    As any function of ctypes, it lets go of the interpreter lock while it runs.
    """
    _copy(target, source, size_bytes)


def copied(source: memoryview) -> memoryview:
    """Return a copy of some memory, writable. Pages are taken as they are written, not all at once beforehand."""
    if len(source) <= SMALL_BYTES or source.readonly:
        return memoryview(bytearray(source))
    target = memoryview(mmap.mmap(-1, len(source)))
    copy_into(target, source)
    return target


def address_of(view: memoryview) -> int:
    """Return where some writable memory begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
