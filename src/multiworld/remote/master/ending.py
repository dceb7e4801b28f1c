"""The end of a program that left its nodes open: all is flushed, and what nobody saw is printed."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from ...process.interruption import SIGNALLED
from ...world.processes.lifetime import unwatch_process, watch_process
from ..errors import RemoteError

FAILED = 1


class Close(Protocol):
    def __call__(self, *, drop: bool, failed: bool) -> Sequence[RemoteError]: ...


class Ending:
    """Calls ``close`` when the program ends, and ``forked`` in a forked child, until ``cancel``."""

    def __init__(self, close: Close, forked: Callable[[], None]) -> None:
        self._close, self._forked = close, forked
        watch_process(self)
        # Behind the hook of the worlds, which is set already: handlers run last in, first out, so the worlds still
        # stand when this one runs.
        atexit.register(self.at_exit)
        atexit.unregister(_hasten_after_interrupt)  # once in a process, behind all connections
        atexit.register(_hasten_after_interrupt)

    def cancel(self) -> None:
        unwatch_process(self)
        atexit.unregister(self.at_exit)

    def on_exit(self) -> None:
        """The worlds end: by then all is closed."""

    def on_fork(self) -> None:
        atexit.unregister(self.at_exit)
        self._forked()

    def at_exit(self) -> None:
        """End the connection, and choose the status of the process."""
        error = getattr(sys, "last_type", None)  # of the error that ended the program
        try:
            unseen = self._close(drop=_was_interrupted(), failed=error is not None)
        except KeyboardInterrupt:
            _end_with(SIGNALLED + signal.SIGINT)
            return
        report_unseen(unseen)
        if unseen and error is None:
            _end_with(FAILED)


def is_failure(error: BaseException | None) -> bool:
    """Whether the status of a process that this ends is another than 0."""
    if isinstance(error, SystemExit):
        return error.code is not None and error.code != 0
    return error is not None


def _was_interrupted() -> bool:
    """Whether an interrupt ended the program."""
    error = getattr(sys, "last_type", None)
    return error is not None and issubclass(error, KeyboardInterrupt)


def _hasten_after_interrupt() -> None:
    """Spare the interpreter its last search for garbage: with PyTorch's objects it takes more than a second.

    Somebody waits for the prompt, and the memory goes back to the system anyway.
    """
    if _was_interrupted():
        gc.freeze()


def report_unseen(unseen: Sequence[RemoteError]) -> None:
    """Print failures that nobody saw: those of one line that say the same, as of each parameter of a model, once."""
    for text, times in Counter(map(str, unseen)).items():
        label = "nobody saw this error" if times == 1 else f"nobody saw this error, which came {times} times"
        print(f"multiworld: {label}: {text}", file=sys.stderr)  # noqa: T201


class _Status:
    """Ends the process with that status when the interpreter forgets it."""

    def __init__(self, status: int, exit_: Callable[[int], None] = os._exit) -> None:
        self._status, self._exit = status, exit_  # this module's names may be gone by then

    def __del__(self) -> None:
        self._exit(self._status)


def _end_with(status: int) -> None:
    """Let the process end with that status, after all other handlers, destructors, and with its output written.

    Python has no other way: its status is settled before the handlers run, an error or SystemExit in one of them
    changes nothing, and a hook for errors is not called in a program that had none. What ``sys`` holds is let go last,
    behind all modules: 3.10 to 3.14 do so.
    """
    sys._multiworld_status = _Status(status)  # type: ignore[attr-defined]
