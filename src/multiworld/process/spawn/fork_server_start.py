"""Start the process of a fork server: forked from this one, or as an interpreter of its own."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading

from . import seqpacket
from .forking import count_lasting_threads, flush_streams, fork
from .interpreter import start_interpreter
from .program import ServerOptions, serve

PROGRAM = "multiworld.process.spawn.program:main"


def start_process(options: ServerOptions, *, in_place: bool) -> tuple[int, socket.socket]:
    """Return its pid and our end of what it is spoken to through. It is our child."""
    ours, theirs = map(_beside_standard_streams, seqpacket.connected_pair())
    try:
        with theirs:
            if in_place and threading.active_count() == 1 and count_lasting_threads() == 1:
                return _fork_server(ours, theirs, options), ours
            return _execute_server(theirs, options), ours
    except BaseException:
        ours.close()
        raise


def _fork_server(ours: socket.socket, theirs: socket.socket, options: ServerOptions) -> int:
    flush_streams()  # else what is buffered is written twice
    pid = fork()
    if pid == 0:
        ours.detach()  # closed with all that is not the server's
        isolated = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
        serve(theirs, options, sys.path[:] if isolated else sys.path[1:])
    return pid


def _execute_server(theirs: socket.socket, options: ServerOptions) -> int:
    process = start_interpreter(PROGRAM, theirs, options.to_text(), reads_stdin=_is_open(0))  # the workers' as well
    process.returncode = 0  # it is waited for by its pid: the object is to take it for ended
    return process.pid


def _beside_standard_streams(sock: socket.socket) -> socket.socket:
    """A process that was started without some of its standard streams gets their numbers for what it opens next."""
    if sock.fileno() > 2:
        return sock
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
