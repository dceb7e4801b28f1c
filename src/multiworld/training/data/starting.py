"""Start the workers of a DataLoader so that they do no harm to the process that trains, nor to its peers."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")


def off_main_thread(make: Callable[[], Made]) -> Made:
    """Return ``make()``, called in a thread of its own. Raises what it raises.

    In the main thread, DataLoader would set a handler for SIGCHLD. When a worker dies, it raises wherever the program
    is at that moment, also in the middle of a commit. From another thread DataLoader can't set it.
    """
    made: list[Made] = []
    failed: list[BaseException] = []
    # A current device is a thread's own, and the thread that pins memory takes over that of the thread that starts it.
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            made.append(make())
        except BaseException as error:  # it comes out below, in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run, name="multiworld-loader-start")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


class WorkerInit:
    """A ``worker_init_fn`` that lets go of the parent's connections, and calls the user's. Picklable, for spawning."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker_id: int) -> None:
        let_go_of_connections()
        if self._init is not None:
            self._init(worker_id)


def let_go_of_connections() -> None:
    """Put nothing in the place of this process's TCP connections, which are its parent's.

    A forked worker outlives a parent that is killed by some seconds. As long as it holds their other copies, the kernel
    tells no peer that the parent is gone. The numbers stay in use, so that objects that still know them do no harm.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            with contextlib.suppress(OSError):  # the listing's own is closed by now
                if stat.S_ISSOCK(os.fstat(fd).st_mode) and _is_internet(fd):
                    os.dup2(nothing, fd, inheritable=False)
    finally:
        os.close(nothing)


def _is_internet(fd: int) -> bool:
    borrowed = socket.socket(fileno=fd)
    try:
        return borrowed.family in (socket.AF_INET, socket.AF_INET6)
    finally:
        borrowed.detach()
