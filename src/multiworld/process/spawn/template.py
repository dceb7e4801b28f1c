"""A process that has imported a program once, and forks processes that run it: each starts in milliseconds.

It is for a process that is not ours alone: it adopts no orphans, and installs no signal handler. ``ForkServer`` is for
launchers.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...errors import MultiworldError
from . import seqpacket

PROGRAM = "multiworld.process.spawn.template_program"
END_S = 10.0


class TemplateLostError(MultiworldError):
    """A template process ended before it had started what was asked of it (``status``: how it ended)."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        return f"the process that forks others ended with status {self.status}: its standard error says why"


class ForkedProcess:
    """A process that a template forked. It is not this process's child, and a pidfd stands for it."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended. Return whether it has."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Give up the descriptor, once the process has ended."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    channel: socket.socket


class Template:
    """Any thread. A template that has ended by itself is started again by the next ``start``."""

    def __init__(self, program: str, environment: Mapping[str, str]) -> None:
        """``program``: ``module:function``; the function gets the arguments, and returns the exit status."""
        self._program, self._environment = program, dict(environment)
        self._lock = threading.Lock()  # guards all below
        self._running: _Running | None = None

    def start(self, arguments: Sequence[str]) -> ForkedProcess:
        """Fork a process that runs the program. The first time it waits for its imports. Raises TemplateLostError."""
        request = json.dumps(list(arguments)).encode()
        with self._lock:
            if self._running is not None:
                forked = _ask(self._running.channel, request)
                if forked is not None:
                    return forked
                _end(self._running)
            self._running = self._begin()
            forked = _ask(self._running.channel, request)
            if forked is None:
                running, self._running = self._running, None
                raise TemplateLostError(_end(running))
            return forked

    def close(self) -> None:
        """End it; it kills what it has forked and what does not end by itself soon. Idempotent."""
        with self._lock:
            if self._running is not None:
                _end(self._running)
            self._running = None

    def _begin(self) -> _Running:
        ours, theirs = seqpacket.connected_pair()
        with theirs:
            command = [sys.executable, "-m", PROGRAM, str(theirs.fileno()), str(os.getpid()), self._program]
            process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return _Running(process, ours)


def _ask(channel: socket.socket, request: bytes) -> ForkedProcess | None:
    """Return what was forked; None if the template has ended. Raises OSError if it can't fork."""
    try:
        seqpacket.send(channel, request)
    except BrokenPipeError:
        return None
    answer = seqpacket.receive(channel)
    if answer is None:
        return None
    content, descriptors = answer
    if not descriptors:
        raise OSError(f"no process can be forked: {content.decode()}")
    return ForkedProcess(int(content), descriptors[0])


def _end(running: _Running) -> int:
    """Return how the template ended."""
    running.channel.close()
    try:
        running.process.wait(END_S)
    except subprocess.TimeoutExpired:
        running.process.kill()  # it is stopped
    return running.process.wait()
