"""What ``mpiexec`` starts for tests: a process that initializes MPI, and becomes a worker when one is needed.

``python -m multiworld.testing.mpi_process PLACE``, where ``PLACE`` is the socket of an ``MpiLauncher``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from ..channel.mpi_job import open_job
from . import worker

__all__ = ["main"]


def main(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.connect(place)
        threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()
        _initialize_mpi()
        _, ends, _, _ = socket.recv_fds(launcher, 1, 4)
    if not ends:
        _end()
    report_fd, command_fd, *outputs = ends
    for fd, output in enumerate(outputs, start=1):
        os.dup2(output, fd)
        os.close(output)
    worker.main(report_fd, command_fd)


def _end_with(launcher: socket.socket) -> None:
    """End with the launcher until it says something: without the others, MPI_Init would use a processor for ever."""
    if not launcher.recv(1, socket.MSG_PEEK):
        _end()


def _end() -> None:
    """Nobody needs this process, or nobody is left. MPI_Finalize would wait for the others."""
    os.kill(os.getpid(), signal.SIGKILL)


def _initialize_mpi() -> None:
    """All processes of the job must, also those that are not needed yet: MPI_Init waits for them.

    Why it could not, a join will say.
    """
    opened = threading.Event()
    open_job().add_callback(lambda _: opened.set())
    opened.wait()


if __name__ == "__main__":
    main(sys.argv[1])
