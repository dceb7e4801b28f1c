"""Copy memory without stopping other Python threads, however much it is."""

from __future__ import annotations

import ctypes
import mmap

__all__ = ["copied", "copy_into"]

SMALL_BYTES = 64 * 1024


def copy_into(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of ``source``, which is writable, over those of ``target``, as long as it."""
    if len(source) <= SMALL_BYTES:
        target[:] = source
        return
    # A function of ctypes lets go of the interpreter lock while it runs; an assignment between views does not.
    ctypes.memmove(_address(target), _address(source), len(source))


def copied(source: memoryview) -> memoryview:
    """Return a copy of some memory. Pages are taken as they are written, not all at once beforehand."""
    if len(source) <= SMALL_BYTES or source.readonly:
        return memoryview(bytes(source))
    target = memoryview(mmap.mmap(-1, len(source)))
    copy_into(target, source)
    return target


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
