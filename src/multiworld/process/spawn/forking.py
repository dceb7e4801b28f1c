"""Fork this process, ask the kernel who is told when whom ends, and count the threads that a fork would lose."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from ..facts import count_threads

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

WAITED_FOR: set[int] = set()
"""Children of this process that somebody here waits for, long after they have ended, if need be."""


def fork() -> int:
    """As ``os.fork``, without Python's warning that there are threads: who calls this has counted them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def flush_streams() -> None:
    """Write what the standard streams hold before a fork: the child would write it once more.

    A stream that is closed, that stands for none, or that the process was started without has nothing.
    """
    streams: Sequence[object] = (sys.stdout, sys.stderr)
    for stream in streams:
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[attr-defined]


def share_memory() -> None:
    """Call it once all is imported that forked processes are to have: what is in memory then stays shared with them."""
    gc.freeze()  # else the first collection of each writes to, and so copies, every page
    flush_streams()
    ctypes.CDLL(None).fflush(None)


def open_standard_descriptors() -> None:
    """Open those of 0, 1 and 2 that this process was started without: else a pipe could get such a number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def start_forked(run: Callable[[], int]) -> int:
    """Fork a child that ends with the status that ``run`` returns, or with 1 and a traceback. Return its pid.

    All signals are blocked in the child, until ``run`` has set what they do there. Raises OSError.
    """
    flush_streams()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = fork()
        if pid == 0:
            _run_to_the_end(run)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def count_lasting_threads() -> int:
    """Return how many threads this process has, not counting those that a fork ends and starts again.

    OpenBLAS, which comes with numpy and thereby with torch, ends its threads before every fork. A fork is the only way
    to tell them from others, so one is made.
    """
    if count_threads() == 1:
        return 1
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return count_threads()


def is_adopting_orphans() -> bool:
    """Whether a descendant whose parent ends becomes a child of this process. Raises OSError if the kernel cannot."""
    answer = ctypes.c_int()
    _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def adopt_orphans(adopt: bool) -> None:
    """Become the process whose child a descendant is once its parent has ended, or no longer. Raises OSError."""
    _prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopt))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends. Raises ProcessLookupError if that is not ``parent``.

    What counts is the thread that the kernel has as this one's parent: for an adopted child, the main thread.
    """
    _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the call above
        raise ProcessLookupError(f"the parent is process {os.getppid()} instead of {parent}: that one has ended")


def outlive_parent() -> None:
    """Take ``die_with_parent`` back."""
    _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(0))


def _run_to_the_end(run: Callable[[], int]) -> NoReturn:
    """Nothing goes back to the caller, whose frames are the parent's."""
    status = 1
    try:
        status = run()
    except BaseException:
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(status)


def _prctl(option: int, argument: object) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
