"""This process as a member of an MPI job: MPI is initialized when a world first needs it, and finalized at exit.

``mpi4py`` initializes MPI when it is imported, and holds the interpreter lock for that. But MPI may wait there for all
processes of the job, and waits for ever if one is gone. So here a thread of our own calls it, without the lock, and
whoever waits for that does so with a deadline. The same thread finalizes MPI, as the standard demands.

A program that has imported ``mpi4py.MPI`` itself owns MPI: what is there is used, and finalizing it is left to it.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from ...extras import install_extra
from ...wire.progress.operation import Operation
from .pump import Found, MpiPump, Request

logger = logging.getLogger(__name__)

TAG = 30_753  # of COMM_WORLD; MPI promises tags up to 32,767
FINALIZE_S = 3.0  # without a lost peer it takes as long as the others take to come there
PROBE_S = 20.0
LAUNCHED = (  # what launchers tell their processes: Open MPI and PRRTE, PMIx, Hydra and Slurm, Cray
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "ALPS_APP_PE",
)
NOT_INSTALLED = f"mpi4py is not installed: {install_extra('mpi')}"
NOT_LAUNCHED = (
    "this process was not started by an MPI launcher: start all members with one mpiexec or srun, "
    "as in `mpiexec -n 4 python program.py`"
)
_PROBE = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


class JobError(Exception):
    """Why this process cannot use MPI."""


class _Message:
    def __init__(self, mpi: Any, message: Any) -> None:
        self._mpi, self._message = mpi, message

    def receive(self, target: memoryview) -> Request:
        request: Request = self._message.Irecv([target, self._mpi.BYTE])
        return request


class MpiJob:
    """The job, the place of this process in it, and the pump for all that its worlds send: a ``Transport``."""

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        self.name = os.environ.get("PMIX_NAMESPACE", "")
        self.lost_peer = False
        """Whether a world has lost one of its members, so that MPI may wait for it for ever."""
        self.pump = MpiPump(self)

    def send(self, message: memoryview, destination: int) -> Request:
        request: Request = self._world.Isend([message, self._mpi.BYTE], dest=destination, tag=TAG)
        return request

    def find(self) -> Found | None:
        status = self._mpi.Status()
        message = self._world.Improbe(source=self._mpi.ANY_SOURCE, tag=TAG, status=status)
        if message is None:
            return None
        return Found(_Message(self._mpi, message), status.Get_count(self._mpi.BYTE), status.Get_source())


class _Owner:
    """The thread that initializes MPI, waits for the end of the process, and finalizes MPI."""

    def __init__(self) -> None:
        self.opened: Operation[MpiJob] = Operation()
        self._leave = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="multiworld-mpi-owner", daemon=True)
        self._thread.start()

    def finalize(self, timeout_s: float | None) -> bool:
        """Wait until MPI is finalized; False if that takes longer."""
        self._leave.set()
        return self._ended.wait(timeout_s)

    def _run(self) -> None:
        try:
            finalize, job = _enter()
        except Exception as error:  # whatever it is, it belongs to those who wait
            self.opened.fail(error if isinstance(error, JobError) else JobError(f"{type(error).__name__}: {error}"))
            return
        self.opened.succeed(job)
        if finalize is not None:
            self._leave.wait()
            finalize()
        self._ended.set()


_owner: _Owner | None = None
_lock = threading.Lock()
_is_fork = False


def open_job() -> Operation[MpiJob]:
    """Return the job of this process; fails with JobError. Cancelling it leaves MPI to initialize all the same."""
    global _owner
    with _lock:
        if _is_fork:
            return _failed("this process was forked from one that uses MPI")
        if _owner is None or _owner.opened.error is not None:
            try:
                _owner = _Owner()
            except RuntimeError as error:
                return _failed(f"no thread for MPI: {error}")
            atexit.unregister(_finalize_if_idle)
            atexit.register(_finalize_if_idle)
        owner = _owner
    opening: Operation[MpiJob] = Operation()

    def opened(shared: Operation[MpiJob]) -> None:
        if shared.error is None:
            opening.succeed(shared.result())
        else:
            opening.fail(shared.error)

    owner.opened.add_callback(opened)
    return opening


def finalize_mpi() -> None:
    """At exit, when no world is left: finalize MPI if we have initialized it, which waits for the whole job.

    Where a peer was lost, only for a moment. Who left without that would make mpiexec end the job, unless that recovers
    from it: then also only for a moment, as others may have lost a peer that was none of ours, and never come there.
    """
    global _owner
    with _lock:
        owner, _owner = _owner, None
    if owner is None or not owner.opened.done or owner.opened.error is not None:
        return
    job = owner.opened.result()
    job.pump.join(FINALIZE_S)
    if not owner.finalize(FINALIZE_S if job.lost_peer or _recovers() else None):
        logger.warning("MPI_Finalize still waits for other processes after %g s; it is left alone", FINALIZE_S)


def _recovers() -> bool:
    """Whether the launcher lets the job go on without those that end in any other way: Open MPI's tells so."""
    return os.environ.get("OMPI_MCA_orte_enable_recovery") == "1"  # noqa: SIM112 - that is its name


def forget_mpi() -> None:
    """In a forked child: MPI is the parent's."""
    global _lock, _owner, _is_fork
    _lock = threading.Lock()
    _is_fork = _is_fork or _owner is not None
    _owner = None


def why_not() -> str:
    """Return why MPI does not work on this machine; empty if it does. Looks in a process of its own, once."""
    if "mpi4py.MPI" in sys.modules:
        return ""
    if importlib.util.find_spec("mpi4py") is None:
        return NOT_INSTALLED
    return _why_not_loaded()


@cache
def _why_not_loaded() -> str:
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"mpi4py cannot be tried: {error}"
    if probe.returncode == 0:
        return ""
    said = probe.stderr.strip().splitlines()
    return f"mpi4py finds no MPI library: {said[-1] if said else 'it says nothing'}"


def _failed(reason: str) -> Operation[MpiJob]:
    operation: Operation[MpiJob] = Operation()
    operation.fail(JobError(reason))
    return operation


def _finalize_if_idle() -> None:
    """Our own hook at exit. While a world is open it is too early: those who close it then finalize MPI."""
    owner = _owner
    if owner is not None and owner.opened.done and owner.opened.error is None and owner.opened.result().pump.in_use:
        return
    finalize_mpi()


def _enter() -> tuple[Callable[[], object] | None, MpiJob]:
    """Return how to finalize MPI, None if that is not ours to do; and the job. Blocks as long as MPI likes."""
    mpi = sys.modules.get("mpi4py.MPI") or _load()
    if mpi.Is_finalized():
        raise JobError("MPI was finalized in this process")
    finalize = None if mpi.Is_initialized() else _initialize(mpi)
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        if finalize is not None:
            finalize()
        raise JobError("MPI was initialized without MPI_THREAD_MULTIPLE, which this channel needs")
    return finalize, MpiJob(mpi)


def _load() -> Any:
    """Import mpi4py's module as a program would, but without initializing MPI."""
    if not any(name in os.environ for name in LAUNCHED):
        raise JobError(NOT_LAUNCHED)
    try:
        mpi4py = importlib.import_module("mpi4py")
    except ImportError as error:
        raise JobError(NOT_INSTALLED) from error
    initialize, mpi4py.rc.initialize = mpi4py.rc.initialize, False
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError, OSError) as error:
        raise JobError(f"mpi4py finds no MPI library: {error}") from error
    finally:
        mpi4py.rc.initialize = initialize


def _initialize(mpi: Any) -> Callable[[], object]:
    """Initialize MPI as mpi4py would, but without the interpreter lock; return how to finalize it."""
    library = ctypes.CDLL(mpi.__file__)  # of which mpi4py has loaded what it needs, libmpi too
    provided = ctypes.c_int(mpi.THREAD_SINGLE)
    status = library.MPI_Init_thread(None, None, ctypes.c_int(mpi.THREAD_MULTIPLE), ctypes.byref(provided))
    if status != mpi.SUCCESS:
        raise JobError(f"MPI_Init_thread failed with {status}")
    for communicator in (mpi.COMM_SELF, mpi.COMM_WORLD):
        communicator.Set_errhandler(mpi.ERRORS_RETURN)
    return library.MPI_Finalize
