"""What a forked process does until its program runs in it: it becomes like an interpreter that was started just now."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from ...elastic.forking import die_with_parent
from ...elastic.python_program import run_to_the_end
from ...elastic.worker_program import Inheritance, _be_fresh, _reset_signals, _take_descriptors
from .order import Order

__all__ = ["become_member"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of the GNU C library
LARGEST_IN_HEAP = 32 * 1024 * 1024  # the most that it takes
KEPT_BYTES = 256 * 1024 * 1024
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def become_member(order: Order, inheritance: Inheritance, stdout_fd: int, stderr_fd: int) -> NoReturn:
    """In the forked child, which holds nothing of the host process any more and has all signals blocked.

    It is killed when the host process ends, leads a session of its own, and ends with its program: status 1 and a
    traceback for what that raises.
    """
    for signum in HANDLED:  # one that is pending is meant for the member, and must not meet the host's handlers
        signal.signal(signum, signal.SIG_DFL)
    os.setsid()
    try:
        die_with_parent(inheritance.agent_pid)
    except ProcessLookupError:
        os._exit(1)
    _take_descriptors(stdout_fd, stderr_fd)
    _reset_signals()
    _be_fresh(_environment(order), inheritance)
    faulthandler.enable(file=2)
    _keep_freed_memory()
    sys.argv[:] = [order.member]
    run_to_the_end(partial(_run, order), announce=_nothing)


def _run(order: Order) -> None:
    module, _, name = order.program.partition(":")
    function: Callable[[dict[str, object]], object] = getattr(importlib.import_module(module), name)
    function(dict(order.arguments))


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


def _nothing() -> None: ...
