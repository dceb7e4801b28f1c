"""What a forked process does until its program runs in it: it becomes like an interpreter that was started just now."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from ...process.spawn.forking import die_with_parent
from ...process.spawn.fresh import become_fresh, reset_signals, take_descriptors
from ...process.spawn.worker_program import Inheritance
from .order import Order

__all__ = ["become_member"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of the GNU C library
LARGEST_IN_HEAP = 32 * 1024 * 1024  # the most that it takes
KEPT_BYTES = 256 * 1024 * 1024
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def become_member(
    order: Order, inheritance: Inheritance, stdout_fd: int, stderr_fd: int, announce: Callable[[], None]
) -> NoReturn:
    """In the forked child, which holds nothing of the host process any more and has all signals blocked.

    It is killed when the host process ends, leads a session of its own, and ends with its program: status 1 and a
    traceback for what that raises. ``announce`` is called when whatever is done to it has the effect that it should.
    """
    for signum in HANDLED:  # one that is pending is meant for the member, and must not meet the host's handlers
        signal.signal(signum, signal.SIG_DFL)
    os.setsid()
    try:
        die_with_parent(inheritance.agent_pid)
    except ProcessLookupError:
        os._exit(1)
    announce()
    take_descriptors(stdout_fd, stderr_fd, reads_stdin=False)
    reset_signals()
    become_fresh(_environment(order), inheritance.num_blas_threads)
    faulthandler.enable(file=2)
    _keep_freed_memory()
    sys.argv[:] = [order.member]
    _end(_outcome(order))


def _outcome(order: Order) -> int:
    """Run the program, and return its exit status; what it raises is shown with its own frames only."""
    try:
        module, _, name = order.program.partition(":")
        function: Callable[[dict[str, object]], object] = getattr(importlib.import_module(module), name)
        function(dict(order.arguments))
    except SystemExit as stop:
        if isinstance(stop.code, int):
            return stop.code & 0xFF
        if stop.code is not None:
            sys.stderr.write(f"{stop.code}\n")
        return 0 if stop.code is None else 1
    except BaseException as error:
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace and trace.tb_next)
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """As the interpreter ends, except that it is not taken apart.

    That would write to, and so copy, every page that is shared with the host process: 0.25 s, during which peers take
    this process for alive. ``multiprocessing`` ends its forked processes in the same way.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined] # wait for threads that are no daemons
        atexit._run_exitfuncs()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)
        os._exit(status)


def _environment(order: Order) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(order.threads), **order.env}


def _keep_freed_memory() -> None:
    """Have the C library keep buffers of some megabytes for the next ones: fresh pages cost more than copying to them.

    A chain of three hops with 4 MB took 6.5 ms without and 4.2 ms with this.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
