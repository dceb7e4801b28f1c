"""Words of shared memory that processes wait on: Linux's futex, without a thread, a descriptor or a lock of its own.

Whoever writes a word calls ``wake`` afterwards; whoever waits has looked at the word before, and ``wait`` looks again,
in the kernel, so no news is lost in between. The kernel's own barriers order the word with what was written before it.
What a waiter reads after it saw the word without entering the kernel is in order on processors with x86's rules only.
"""

from __future__ import annotations

import ctypes
import platform

_NUMBERS = {"x86_64": 202}
_number = _NUMBERS.get(platform.machine())
WORKS = _number is not None and ctypes.sizeof(ctypes.c_void_p) == 8
FUTEX_WAIT, FUTEX_WAKE = 0, 1
EVERYBODY = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint32,
)


def wait(address: int, seen: int, timeout_s: float) -> None:
    """Sleep while the word holds ``seen``, until it is woken, at most so long, or for no reason at all."""
    timeout = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _syscall(_number, address, FUTEX_WAIT, seen, ctypes.addressof(timeout), None, 0)


def wake(address: int) -> None:
    """Wake all that wait on the word, in all processes that map it."""
    _syscall(_number, address, FUTEX_WAKE, EVERYBODY, None, None, 0)
