"""The signals that end a host process, as something its loop can wait for. In a process that is nothing else."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

from ...process.interruption import ENDING, takeable
from ...wire.progress.thread import ProgressThread

__all__ = ["ENDING", "Signals"]


class Signals:
    """Takes the signals from its making to ``close``; those that came before ``listen`` are told then.

    A signal that is ignored stays so: SIGHUP under ``nohup``, SIGINT in what a script starts in the background.
    """

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._before = {signum: signal.signal(signum, _noted) for signum in takeable(ENDING)}
        self._on_signal: Callable[[int], None] | None = None
        self._closed = False

    def listen(self, loop: ProgressThread, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        loop.register(self._read_fd, select.EPOLLIN, self)

    def on_ready(self, events: int) -> None:
        assert self._on_signal is not None
        for signum in os.read(self._read_fd, 64):
            if signum in ENDING:
                self._on_signal(signum)

    def on_failure(self, error: BaseException) -> None: ...

    def close_descriptor(self) -> None:
        os.close(self._read_fd)

    def close(self) -> None:
        """Set back what was before. The loop has closed the other descriptor."""
        if not self._closed:
            self._closed = True
            signal.set_wakeup_fd(self._before_fd)
            for signum, handler in self._before.items():
                signal.signal(signum, handler)
            os.close(self._write_fd)


def _noted(signum: int, frame: object) -> None:
    """Python then writes the number to the descriptor, which is all that is wanted."""
