"""Fork the process that will write a training process's checkpoints, instead of starting an interpreter for it.

That interpreter imports torch and what saves checkpoints, which takes more than all else in a short training. Tests of
the process that writes, and of how it starts, do without this.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict

from multiworld.process.facts import open_descriptors
from multiworld.process.spawn import interpreter
from multiworld.process.spawn.forking import fork
from tests import warm_programs
from tests.warm_programs import Program, become_program

WRITER = "multiworld.training.checkpoint.writer_program"
ORDER_BYTES = 128 * 1024
MAX_ENDS = 16


def fork_writer() -> None:
    """Fork it now, as this process has one thread, and let the first interpreter that is started be this child.

    It ends with this process if none is started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = fork()
    if pid == 0:
        _await_order(theirs)
    theirs.close()

    def hand_over(program: Program, ends: Sequence[int]) -> int:
        assert WRITER in program.target
        warm_programs.fork_by(None)
        with ours:
            socket.send_fds(ours, [json.dumps(asdict(program)).encode()], list(ends))
        return pid

    warm_programs.fork_by(hand_over)
    vars(interpreter)["subprocess"] = warm_programs


def _await_order(channel: socket.socket) -> None:
    for descriptor in open_descriptors():
        if descriptor > 2 and descriptor != channel.fileno():
            with contextlib.suppress(OSError):  # the descriptor of this very listing
                os.close(descriptor)
    content, ends, _, _ = socket.recv_fds(channel, ORDER_BYTES, MAX_ENDS)
    if not content:
        os._exit(0)
    channel.close()
    become_program(Program(**json.loads(content)), ends, sys.path)
