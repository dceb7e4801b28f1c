"""The program of a template process: ``python -m ... DESCRIPTOR PARENT MODULE:FUNCTION``."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from . import seqpacket
from .forking import share_memory, start_forked
from .fresh import reseed, reset_signals

END_S = 5.0
"""What was forked has so long to end by itself when the parent is done, or has ended."""
IGNORED = frozenset({signal.SIGINT})
"""Ctrl-C is the parent's."""
Program = Callable[[Sequence[str]], int]


def main(descriptor: int, parent: int, name: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, function = name.partition(":")
    program: Program = getattr(importlib.import_module(module), function)
    share_memory()
    _Template(socket.socket(fileno=descriptor), parent, program).run()
    os._exit(0)  # an interpreter with all that was imported takes long to end, and the parent waits for it


class _Template:
    def __init__(self, channel: socket.socket, parent: int, program: Program) -> None:
        self._channel, self._program = channel, program
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._parent = os.pidfd_open(parent)
        self._poll.register(self._parent, select.POLLIN)  # a forked child of the parent may keep the channel open
        self._forked: dict[int, int] = {}  # by pidfd: pid

    def run(self) -> None:
        """Fork on request until the parent is done."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._forked:
                    self._reap(descriptor)
                elif descriptor == self._parent:
                    self._end()
                    return
                else:
                    received = seqpacket.receive(self._channel)
                    if received is None:
                        self._end()
                        return
                    self._fork(json.loads(received[0]))

    def _fork(self, arguments: Sequence[str]) -> None:
        try:
            pid = start_forked(partial(self._be_forked, arguments))
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            seqpacket.send(self._channel, str(error).encode())
            return
        self._forked[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        seqpacket.send(self._channel, str(pid).encode(), [pidfd])

    def _be_forked(self, arguments: Sequence[str]) -> int:
        """In the child."""
        self._channel.close()
        for descriptor in (self._parent, *self._forked):
            os.close(descriptor)
        reset_signals(IGNORED)
        reseed()
        return self._program(arguments)

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._forked.pop(pidfd), 0)

    def _end(self) -> None:
        """Leave nothing behind, also where a process is stopped."""
        self._poll.unregister(self._channel)
        self._poll.unregister(self._parent)
        until = time.monotonic() + END_S
        while self._forked and (left_s := until - time.monotonic()) > 0:
            for pidfd, _ in self._poll.poll(left_s * 1000):
                self._reap(pidfd)
        for pidfd in tuple(self._forked):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self._reap(pidfd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
