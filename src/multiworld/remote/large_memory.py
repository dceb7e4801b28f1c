"""Memory for large tensors that come: the memory of an earlier tensor of that size is used again.

Fresh memory costs a page fault for every 4 KiB; together they take twice as long as the copy. The batches of a loop get
the same memory again and again. Memory that no tensor uses is kept for a second.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, UntypedStorage

MIN_BYTES: Final = 1024 * 1024
"""Smaller memory is kept by the C library."""
KEEP_S: Final = 1.0
"""Memory is kept for so long after a tensor took it. Later, it goes back to the system as soon as no tensor uses it."""
MAX_BYTES: Final = 256 * 1024 * 1024
MAX_STORAGES: Final = 16
HUGE_BYTES: Final = 2 * 1024 * 1024
"""The size of a huge page. One saves 512 page faults."""


class LargeMemory:
    """Any thread. ``later`` calls a function after so many seconds, or never once all is over."""

    def __init__(
        self, later: Callable[[float, Callable[[], None]], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._later, self._clock = later, clock
        self._lock = threading.Lock()  # guards the lines below
        self._kept: list[_Kept] = []  # those that were taken first come first
        self._timer_set = False

    def tensor(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        """Return ``[num_elements]`` of any values, which is like any other tensor. Raises RuntimeError: no memory."""
        size_bytes = num_elements * dtype.itemsize
        if size_bytes < MIN_BYTES:
            return torch.empty(num_elements, dtype=dtype)
        with self._lock:
            found = next((each for each in self._kept if each.is_free(size_bytes)), None)
            if found is None:
                storage = self._new(size_bytes)
            else:
                self._kept.remove(found)
                storage = found.storage
            if size_bytes <= MAX_BYTES:
                self._kept.append(_Kept(storage, size_bytes, self._clock()))
                self._shorten()
                self._set_timer()
            return torch.empty(0, dtype=dtype).set_(storage, 0, (num_elements,), (1,))

    def clear(self) -> None:
        """Keep nothing but what tensors hold."""
        with self._lock:
            self._kept.clear()

    def _new(self, size_bytes: int) -> UntypedStorage:
        try:
            storage = _storage(size_bytes)
        except (RuntimeError, MemoryError):  # what is kept may be what is missing
            self._kept.clear()
            storage = _storage(size_bytes)
        _take_huge_pages(storage.data_ptr(), size_bytes)
        return storage

    def _shorten(self) -> None:
        kept = self._kept
        while len(kept) > MAX_STORAGES or sum(each.size_bytes for each in kept) > MAX_BYTES:
            del kept[0]

    def _set_timer(self) -> None:
        if not self._timer_set and self._kept:
            self._timer_set = True
            self._later(KEEP_S, self._forget)

    def _forget(self) -> None:
        with self._lock:
            self._timer_set = False
            since = self._clock() - KEEP_S
            self._kept = [each for each in self._kept if each.taken_at > since]
            self._set_timer()


class _Kept:
    """A storage that a tensor uses, or has used. A user of that tensor may have resized or moved the storage."""

    __slots__ = ("_address", "size_bytes", "storage", "taken_at")

    def __init__(self, storage: UntypedStorage, size_bytes: int, taken_at: float) -> None:
        self.storage, self.size_bytes, self.taken_at = storage, size_bytes, taken_at
        self._address = storage.data_ptr()

    def is_free(self, size_bytes: int) -> bool:
        """Whether its size is ``size_bytes``, and nothing else refers to it: no tensor, and no Python object."""
        return (
            size_bytes == self.size_bytes
            and sys.getrefcount(self.storage) == _REFERENCES
            and torch._C._storage_Use_Count(self.storage._cdata) == 1
            and self.storage.data_ptr() == self._address
            and self.storage.nbytes() == size_bytes
        )


_REFERENCES: Final = 2
"""What ``sys.getrefcount`` returns if one attribute alone refers to the object: that one, and its own argument."""


def _storage(size_bytes: int) -> UntypedStorage:
    return UntypedStorage(size_bytes)  # type: ignore[no-untyped-call]


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _take_huge_pages(address: int, size_bytes: int) -> None:
    """Let fresh memory have huge pages, where the system gives some to those who ask. It may refuse."""
    begin = -(-address // HUGE_BYTES) * HUGE_BYTES
    end = (address + size_bytes) // HUGE_BYTES * HUGE_BYTES
    if begin < end:
        _madvise(begin, end - begin, mmap.MADV_HUGEPAGE)
