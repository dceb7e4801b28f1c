"""How a host process begins: its fork server imports what members are to have, so that they need not."""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import closing
from functools import partial
from typing import NoReturn

from ...process.interruption import takeable
from ...process.orphans import Reaping
from ...process.spawn import seqpacket
from ...process.spawn.fork_server import ForkServer
from ...process.spawn.forking import die_with_parent, open_standard_descriptors, outlive_parent
from ...wire.descriptors import raise_limit
from ...wire.messages import decode
from ...world.processes.procfs import child_pids
from .host_process import HostProcess
from .options import HostOptions
from .signals import ENDING, Signals

# What most members run, and what the user's main module, which defines the works of a replica, imports itself.
PRELOADED = (
    "multiworld.serving.hosts.member_process",
    "multiworld.serving.replica_program",
    "multiworld.serving.pipeline",
)


def run_host(options: HostOptions) -> int:
    """Be the host process until it is told to stop, and return the exit status.

    This process must be there for nothing else: SIGINT, SIGTERM and SIGHUP end all members gracefully, a second one at
    once. Until there can be members, while it imports, they do what they did before.
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
    reaping = Reaping(child_pids())  # before there is a fork server, whose modules may start processes
    start_server = partial(
        ForkServer.start, preload=(*PRELOADED, *options.preload), must_preload=False, paths=tuple(sys.path)
    )
    server = start_server(stoppable=True)
    try:
        warnings = server.wait_ready()
        with closing(Signals()) as signals:
            if outlives_parent:
                outlive_parent()  # from now on its end is seen, and there may be more to kill than our own children
            again = partial(start_server, in_place=False)  # by then this process holds what is not for members
            return HostProcess(options, server, again, signals, reaping, warnings=warnings, owner=owner).run()
    except ConnectionError as error:
        if (status := server.exit_status) is not None and -status in ENDING:  # while it imported the user's modules
            signal.raise_signal(-status)  # the end of this process, as if it had imported them itself
        sys.stderr.write(f"no member can be started: {error}\n")
        return 1
    finally:
        server.close()


def _receive_options(owner: socket.socket) -> HostOptions:
    received = seqpacket.receive(owner)
    if received is None:
        sys.exit(1)  # the owner died
    if not received[1]:
        sys.exit("the host process could not take its options: no descriptor is free (see ulimit -n)")
    with open(received[1][0], "rb") as file:
        return decode(HostOptions, file.read())
