"""Starts the members of a crew as processes of one MPI job, as worlds on ``mpi`` need them.

Nobody can enter a job later. So it has spare processes, which take the places of those that are killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import MultiworldError
from .deadlines import Deadline, scaled
from .processes import Worker
from .worker_group import WorkerGroup
from .worker_process import Ends, ForeignProcess

OPEN_MPI_OPTIONS = ("--oversubscribe", "--allow-run-as-root", "--mca", "btl_base_warn_component_unused", "0")
RECOVERY = "--enable-recovery"  # else mpiexec ends the job with the first process that is killed
START_S = 30.0
END_S = 5.0
_PEER = struct.Struct("iII")  # pid, user, group


class JobFailedError(MultiworldError, AssertionError):
    """An MPI job did not do what a test needs of it."""

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(reason, output)
        self.reason, self.output = reason, output

    def __str__(self) -> str:
        return f"{self.reason}\n{self.output}".rstrip()


def why_no_jobs() -> str:
    """Return why no MPI job can be started here; empty if one can."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        return "there is no mpiexec (on Debian: apt-get install openmpi-bin)"
    said = _version(mpiexec)
    if "Open MPI" not in said and "OpenRTE" not in said:
        return f"{mpiexec} is not that of Open MPI: {said.splitlines()[:1]}"
    from ..channel import registry  # with it comes torch, which whoever only asks for help need not wait for

    support = registry.available()["mpi"]
    return "" if support.works else support.reason


@cache
def _version(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout


class MpiLauncher:
    """A ``Launch``: the first workers of a group start a job with ``num_spares`` processes more, which are the next.

    Without ``recovery`` mpiexec does what it does by default: it ends the whole job with the first process that is
    killed. Raises ``JobFailedError`` where a job does not start, or has no spare process left.
    """

    def __init__(self, num_spares: int = 0, *, recovery: bool = True) -> None:
        self._num_spares, self._options = num_spares, (*OPEN_MPI_OPTIONS, *([RECOVERY] if recovery else []))
        self._group: WorkerGroup | None = None
        self._job: _Job | None = None

    def __call__(
        self, workers: WorkerGroup, program: str, names: Sequence[str], *, netns: str | None = None, **options: Any
    ) -> list[Worker]:
        if netns is not None:
            raise ValueError(f"netns is {netns!r}, but mpiexec starts all processes of a job where it is itself")
        if self._job is None or self._group is not workers:
            self._group, self._job = workers, _Job(len(names) + self._num_spares, self._options)
            workers.call_at_close(self._job.close)
        return [workers.start(program, name=name, process=self._job.hire, **options) for name in names]


class _Job:
    """One ``mpiexec``, and the connections to those of its processes that are no workers yet."""

    def __init__(self, size: int, options: Sequence[str]) -> None:
        self._size = size
        self._folder = tempfile.TemporaryDirectory(prefix="multiworld-mpi-")
        self._idle: list[socket.socket] = []
        self._launcher: subprocess.Popen[bytes] | None = None
        try:
            self._start(options)
        except BaseException:
            self.close()
            raise

    def _start(self, options: Sequence[str]) -> None:
        place = str(Path(self._folder.name) / "launcher")
        with socket.socket(socket.AF_UNIX) as listener, self._output.open("wb") as output:
            listener.bind(place)
            listener.listen(self._size)
            # What MPI shares between processes goes there, too: it removes nothing of those that are killed.
            memory = ("--mca", "btl_vader_backing_directory", self._folder.name)
            program = (sys.executable, "-m", "multiworld.testing.mpi_process", place)
            self._launcher = subprocess.Popen(
                ["mpiexec", "-n", str(self._size), *options, *memory, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                start_new_session=True,
            )
            self._await_all(listener, self._launcher)

    def _await_all(self, listener: socket.socket, launcher: subprocess.Popen[bytes]) -> None:
        listener.settimeout(0.1)
        deadline = Deadline(START_S)
        while len(self._idle) < self._size:
            try:
                self._idle.append(listener.accept()[0])
            except TimeoutError:
                if launcher.poll() is not None:
                    raise self._failure(f"mpiexec ended with {launcher.returncode}") from None
                if deadline.expired:
                    num_here = len(self._idle)
                    raise self._failure(f"mpiexec has started {num_here} of {self._size} processes") from None

    def hire(self, ends: Ends) -> ForeignProcess:
        """Make a worker of the next process."""
        if not self._idle:
            raise self._failure(
                f"all {self._size} processes of the MPI job are in use or dead: it needs more spare ones"
            )
        with self._idle.pop(0) as connection:
            pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            try:
                process = ForeignProcess(pid)
            except ProcessLookupError as error:
                raise self._failure(f"process {pid} of the MPI job is gone") from error
            try:
                socket.send_fds(connection, [b"."], list(ends))
            except OSError as error:
                process.close()
                raise self._failure(f"process {pid} of the MPI job is gone") from error
        return process

    def close(self) -> None:
        """End mpiexec, whose other processes have ended; who is idle ends now. Idempotent."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            for signum in (0, signal.SIGTERM, signal.SIGKILL):
                launcher.send_signal(signum)  # told to end, it ends its processes; killed, it leaves them behind
                try:
                    launcher.wait(scaled(END_S))  # it removes what MPI has left
                    break
                except subprocess.TimeoutExpired:
                    continue
        self._folder.cleanup()

    @property
    def _output(self) -> Path:
        return Path(self._folder.name) / "output"

    def _failure(self, reason: str) -> JobFailedError:
        return JobFailedError(reason, self._output.read_text(errors="replace"))
