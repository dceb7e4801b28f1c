"""How a host process begins: it imports what members are to have, so that they need not, and forks nothing before."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterable
from typing import NoReturn

from ...process.interruption import takeable
from ...process.orphans import Reaping
from ...process.spawn.blas_threads import get_blas_threads, set_blas_threads
from ...process.spawn.forking import (
    count_lasting_threads,
    die_with_parent,
    open_standard_descriptors,
    outlive_parent,
    share_memory,
)
from ...process.spawn.worker_program import Inheritance
from ...wire.descriptors import raise_limit
from ...wire.token import weakness_is_told
from ...world.procfs import child_pids
from .host_process import HostProcess
from .lines import LineSplitter
from .options import HostOptions
from .owner_messages import OWNER_SAYS
from .signals import Signals

__all__ = ["main", "run_host"]

IMPORTED = ("torch", "multiworld.world.manager", "multiworld.serving")
PROGRAMS = ("multiworld.serving.replica_program",)  # what most members run
CHUNK_BYTES = 64 * 1024


def run_host(options: HostOptions) -> int:
    """Be the host process until it is told to stop, and return the exit status.

    This process must have one thread, and be there for nothing else: SIGINT, SIGTERM and SIGHUP end all members
    gracefully, a second one at once. Until there can be members, while it imports, they do what they did before.
    """
    return _run(options, None)


def main(descriptor: int, dies_with_parent: bool) -> NoReturn:
    """In an interpreter of its own, whose owner sends the options through the descriptor."""
    for signum in takeable([signal.SIGINT]):  # while it imports: what is imported would catch a KeyboardInterrupt
        signal.signal(signum, signal.SIG_DFL)
    owner = socket.socket(fileno=descriptor)
    owner.set_inheritable(False)
    options = _receive_options(owner)
    if dies_with_parent:
        try:
            die_with_parent(options.owner_pid)
        except ProcessLookupError:
            sys.exit(1)
    sys.exit(_run(options, owner, outlives_parent=dies_with_parent))


def _run(options: HostOptions, owner: socket.socket | None, *, outlives_parent: bool = False) -> int:
    open_standard_descriptors()
    raise_limit()  # for members, too: a gateway has connections without number, and a replica an edge per neighbour
    if options.paths:
        sys.path[:] = options.paths  # before anything of theirs is imported
    reaping = Reaping(child_pids())  # before modules are imported, which may start processes
    weakness_is_told(options.token)  # members are forked from here
    warnings, num_blas_threads = _prepare((*PROGRAMS, *options.preload))
    signals = Signals()
    try:
        inheritance = Inheritance(os.getpid(), tuple(sys.path), num_blas_threads)
        if outlives_parent:
            outlive_parent()  # from now on its end is seen, and there may be more to kill than our own children
        process = HostProcess(options, inheritance, signals, reaping, warnings=warnings, owner=owner)
        return process.run()
    finally:
        signals.close()


def _receive_options(owner: socket.socket) -> HostOptions:
    splitter = LineSplitter(OWNER_SAYS)
    while True:
        chunk = owner.recv(CHUNK_BYTES)
        if not chunk:
            sys.exit(1)  # the owner died
        for said in splitter.feed(chunk):
            if not isinstance(said, HostOptions):
                sys.exit(0)  # it is to stop before it has begun
            return said


def _prepare(preload: Iterable[str]) -> tuple[list[str], int | None]:
    """Import, and return what members should be warned of and with how many threads numpy would compute."""
    gc.disable()  # objects that come to stay need not be looked at while more of them come
    for name in IMPORTED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)  # else a module that computes while it is imported starts threads that no member has
    num_blas_threads = get_blas_threads()
    set_blas_threads(1)
    warnings = _preload(preload)
    share_memory()
    gc.enable()
    return warnings, num_blas_threads


def _preload(names: Iterable[str]) -> list[str]:
    warnings = []
    threads = count_lasting_threads()
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())
            warnings.append(f"{name} was not preloaded: {type(error).__name__}: {reason}"[:2000])
        if (now := count_lasting_threads()) > threads:
            warnings.append(f"preloading {name} started {now - threads} thread(s), which members do not have")
            threads = now
    return warnings
