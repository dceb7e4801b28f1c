"""Have a forked process be like an interpreter that was started just now, but for what has been imported."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Container, Mapping
from typing import BinaryIO, TextIO

from .blas_threads import set_blas_threads

DUMP_SIGNAL = signal.SIGRTMIN + 7
"""A process that became fresh answers it by writing the stacks of all its threads to standard error."""
IONBF = 2  # of the C library


def reset_signals(ignored: Container[int] = ()) -> None:
    """Have what an interpreter has that was started just now, by a process that ignores these."""
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for signum in signal.valid_signals():
        if signum in ignored or signum in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_IGN)
        elif signum == signal.SIGINT:
            signal.signal(signum, signal.default_int_handler)
        elif signal.getsignal(signum) not in (signal.SIG_DFL, None):  # None: not Python's, such as faulthandler's
            signal.signal(signum, signal.SIG_DFL)


def take_descriptors(stdout_fd: int, stderr_fd: int, *, reads_stdin: bool) -> None:
    """Make these the standard output and error. ``reads_stdin``: keep the standard input; else it becomes empty."""
    if not reads_stdin:
        stdin_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(stdin_fd, 0)
        os.close(stdin_fd)
    os.set_inheritable(0, True)  # a program may have opened it as its own
    for number, fd in ((1, stdout_fd), (2, stderr_fd)):
        os.dup2(fd, number)
        os.close(fd)


def become_fresh(env: Mapping[str, str], num_blas_threads: int | None) -> None:
    """Undo what tells this interpreter from one that was started just now, with what has been imported.

    ``num_blas_threads``: with how many threads numpy would compute, as OpenBLAS found when it was loaded.
    """
    for name in os.environ.keys() - env.keys():  # what stays as it is stays in pages shared with the fork server
        del os.environ[name]
    os.environ.update({name: value for name, value in env.items() if os.environ.get(name) != value})
    time.tzset()
    _open_standard_streams()
    _forget_logging()
    sys.excepthook, sys.displayhook = sys.__excepthook__, sys.__displayhook__
    threading.excepthook = threading.__excepthook__
    reseed()
    _set_threads(env, num_blas_threads)
    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True, chain=False)
    gc.enable()


def _open_standard_streams() -> None:
    """As ``python -u`` does, with the encodings that this interpreter chose when it was started."""
    was_in, was_out, was_err = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.stdin = _stream("stdin", open(0, "rb", closefd=False), was_in)  # noqa: SIM115
    sys.stdout = _stream("stdout", open(1, "wb", buffering=0, closefd=False), was_out)  # noqa: SIM115
    sys.stderr = _stream("stderr", open(2, "wb", buffering=0, closefd=False), was_err)  # noqa: SIM115
    library = ctypes.CDLL(None)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
        library.setvbuf(ctypes.c_void_p.in_dll(library, name), None, IONBF, 0)  # what C libraries write


def _stream(name: str, binary: BinaryIO, was: TextIO | None) -> io.TextIOWrapper:
    encoding, errors = (was.encoding, was.errors) if was is not None else ("utf-8", None)
    newline, mode = (None, "r") if name == "stdin" else ("\n", "w")
    stream = io.TextIOWrapper(binary, encoding, errors, newline=newline, write_through=True)
    for labelled, label, text in ((getattr(binary, "raw", binary), "name", f"<{name}>"), (stream, "mode", mode)):
        setattr(labelled, label, text)
    return stream


def _forget_logging() -> None:
    """Take back what a launcher may have set up. Loggers of libraries that set up their own keep that."""
    if logging.root.manager.disable != logging.NOTSET:
        logging.disable(logging.NOTSET)
    for logger, level in ((logging.root, logging.WARNING), (logging.getLogger("multiworld"), logging.NOTSET)):
        logger.handlers.clear()
        if logger.level != level:  # setting it writes to every logger that there is, and so copies its page
            logger.setLevel(level)


def reseed() -> None:
    """Seed the generators of numpy and torch anew. Python's ``random`` does it by itself at a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
        processes.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def _set_threads(env: Mapping[str, str], num_blas_threads: int | None) -> None:
    """OpenMP and OpenBLAS looked at these variables when they were loaded."""
    num_threads = _count_of(env, "OMP_NUM_THREADS")
    torch = sys.modules.get("torch")
    if torch is not None and num_threads is not None:
        torch.set_num_threads(num_threads)
    if num_blas_threads is None:
        return
    if num_threads is not None and _count_of(env, "OPENBLAS_NUM_THREADS") is None:
        num_blas_threads = num_threads
    if num_blas_threads != 1:
        set_blas_threads(num_blas_threads)


def _count_of(env: Mapping[str, str], name: str) -> int | None:
    first, *_ = env.get(name, "").split(",")  # one for each level of nesting
    return int(first) if first.strip().isdecimal() and int(first) > 0 else None
