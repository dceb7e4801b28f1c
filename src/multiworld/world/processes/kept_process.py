"""Keep one helper process of this process running: start it again when it ends, replace it when it is stopped."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ...wire.progress.thread import IOHandler, Timer
from .procfs import EXITED, process_start_time, process_state
from .restarts import Restarts
from .vitals import StoppedTime, open_pidfd

logger = logging.getLogger(__name__)

LOOK_S = 2.0


def start_program(program: str, *arguments: str, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a file of ours, which needs the standard library only, as a child with a pipe to its standard input.

    All signals are blocked in it, so that none meant for this process or its terminal ends it. Raises OSError.
    """
    if not sys.executable:
        raise OSError("this process does not know its Python interpreter (sys.executable)")
    # Nothing of the environment but where the interpreter's own libraries are: the token may stand in it.
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # of this thread; the child inherits it
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(program), *arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=tuple(descriptors),
            cwd="/",
            env=environment,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Helper(Protocol):
    """A running child process of this one."""

    @property
    def pid(self) -> int: ...

    def close(self) -> None:
        """End and reap it. Idempotent."""


H = TypeVar("H", bound=Helper)


class Loop(Protocol):
    """What waits for descriptors and timers here: a ``ProgressThread``, or the loop of a process with one thread."""

    def register(self, fd: int, events: int, handler: IOHandler) -> None: ...

    def unregister(self, fd: int) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...


class KeptProcess(Generic[H]):
    """All on the loop's thread, and ``close`` also after the loop has stopped.

    ``start`` may raise; it is called again later, after growing pauses. ``on_started`` gets each process after the
    first one that ``begin`` could start.
    """

    def __init__(
        self, loop: Loop, what: str, start: Callable[[], H], on_started: Callable[[H], None], *, look_s: float = LOOK_S
    ) -> None:
        """``what``: as logs call it, with what it is for: "the sentinel (…)"."""
        self._loop, self._what, self._start, self._on_started, self._look_s = loop, what, start, on_started, look_s
        self.current: H | None = None
        """None while it cannot be started."""
        self._restarts = Restarts()
        self._started_at = 0.0
        self._start_time: int | None = None
        self._stopped: StoppedTime | None = None
        self._has_failed = False
        self._pidfd: int | None = None
        self._timer: Timer | None = None
        self._closed = False

    def begin(self) -> H | None:
        """Start it, here and now; None if that did not work, which is tried again then."""
        self._try()
        return self.current

    def close(self) -> None:
        """End the process. Idempotent."""
        self._closed = True
        self._let_go()

    def release(self) -> H | None:
        """Return what runs, if anything does: the caller ends it, and none is started any more."""
        helper, self.current = self.current, None
        self.close()
        return helper

    def on_ready(self, events: int) -> None:
        self._ended("ended")

    def on_failure(self, error: BaseException) -> None:
        logger.error("the end of %s was not dealt with: %s", self._what, error)

    def close_descriptor(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _try(self) -> None:
        try:
            helper = self._start()
        except Exception as error:  # whatever it is, what it helps goes on without it
            if not self._has_failed:
                logger.warning("%s cannot be started, which is tried again: %s", self._what, error)
            self._has_failed = True
            self._again(lived_s=0.0)
            return
        self._has_failed = False
        self.current, self._started_at, self._stopped = helper, time.monotonic(), StoppedTime(helper.pid)
        self._start_time = process_start_time(helper.pid)
        self._pidfd = open_pidfd(helper.pid)
        if self._pidfd is not None:
            self._loop.register(self._pidfd, select.EPOLLIN, self)
        self._timer = self._loop.call_later(self._look_s, self._look)

    def _try_again(self) -> None:
        if self._closed:
            return
        self._try()
        if self.current is not None:
            self._on_started(self.current)

    def _again(self, *, lived_s: float) -> None:
        self._timer = self._loop.call_later(self._restarts.ended(lived_s), self._try_again)

    def _look(self) -> None:
        """See what no descriptor tells: that it is stopped, which two looks must find; its end, without a pidfd."""
        if self._closed or self.current is None:
            return
        if self._start_time is not None and process_state(self.current.pid, self._start_time) == EXITED:
            self._ended("ended")
        elif self._stopped is not None and self._stopped.look(time.monotonic()) > 0:
            self._ended("was stopped")
        else:
            self._timer = self._loop.call_later(self._look_s, self._look)

    def _ended(self, how: str) -> None:
        if self._closed or self.current is None:
            return
        logger.warning("%s (process %d) %s; another one is started", self._what, self.current.pid, how)
        self._let_go()
        self._again(lived_s=time.monotonic() - self._started_at)

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pidfd is not None:
            self._loop.unregister(self._pidfd)
            self.close_descriptor()
        helper, self.current = self.current, None
        if helper is not None:
            helper.close()
