"""The two moments at which a process ends being the one that opened our connections: its exit, and a fork."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Protocol

from ...channel.mpi.job import finalize_mpi, forget_mpi
from ...channel.threads import forget_reapers, join_reapers
from ...wire.connection.waiter import waiter
from ...wire.progress.waiting import blocked_threads

WOKEN_S = 0.5
REAPED_S = 3.0  # a library that is connecting to a peer that was lost just then may take longer


class ProcessBound(Protocol):
    """What must not outlive the process, nor live in two."""

    def on_exit(self) -> None:
        """The interpreter ends."""

    def on_fork(self) -> None:
        """This is a forked child: the parent's connections are not ours to hold open or to answer on."""


_bound: weakref.WeakSet[ProcessBound] = weakref.WeakSet()
_lock = threading.Lock()
_fork_hook_set = False


def watch_process(bound: ProcessBound) -> None:
    """Tell it about exit and fork until ``unwatch_process``. The hooks are set on first use, not at import."""
    global _fork_hook_set
    with _lock:
        if not _bound:
            atexit.register(_exit)
        _bound.add(bound)
        if not _fork_hook_set:  # there is no way to take it back
            _fork_hook_set = True
            os.register_at_fork(after_in_child=_forked)


def unwatch_process(bound: ProcessBound) -> None:
    with _lock:
        _bound.discard(bound)
        if not _bound:
            atexit.unregister(_exit)


def _exit() -> None:
    woken = blocked_threads()
    for bound in list(_bound):
        bound.on_exit()
    # The operations of these have just failed. A thread that is still unwinding through PyTorch's code when the
    # interpreter goes would end the process with SIGABRT, so they get a moment to end.
    at = time.monotonic() + WOKEN_S
    for thread in woken:
        thread.join(max(0.0, at - time.monotonic()))
    join_reapers(REAPED_S)
    finalize_mpi()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    forget_reapers()
    waiter.forget()
    forget_mpi()
    for bound in list(_bound):
        bound.on_fork()
    _bound.clear()
