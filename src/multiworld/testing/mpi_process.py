"""What ``mpiexec`` starts for tests: a process that initializes MPI, and becomes a worker when one is needed.

``python -m multiworld.testing.mpi_process PLACE``, where ``PLACE`` is the socket of an ``MpiLauncher``.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading

from . import worker


def main(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.connect(place)
        hired: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        threading.Thread(target=_await_hire, args=(launcher, hired), daemon=True).start()
        _initialize_mpi()
        report_fd, command_fd, *outputs = hired.get()
    for fd, output in enumerate(outputs, start=1):
        os.dup2(output, fd)
        os.close(output)
    worker.main(report_fd, command_fd)


def _await_hire(launcher: socket.socket, hired: queue.SimpleQueue[list[int]]) -> None:
    """Take the worker's ends from the launcher. End with it, also amid MPI_Init, which waits for others for ever."""
    _, ends, _, _ = socket.recv_fds(launcher, 1, 4)
    if not ends:  # nobody needs this process, or nobody is left; MPI_Finalize would wait for the others
        os.kill(os.getpid(), signal.SIGKILL)
    hired.put(ends)


def _initialize_mpi() -> None:
    """All processes of the job must, also those that are not needed yet: MPI_Init waits for them.

    Why it could not, a join will say.
    """
    from ..channel.mpi.job import open_job  # with it comes torch: the launcher is not kept waiting for that

    opened = threading.Event()
    open_job().add_callback(lambda _: opened.set())
    opened.wait()


if __name__ == "__main__":
    main(sys.argv[1])
