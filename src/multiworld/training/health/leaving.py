"""Ask a member to leave: by the program, by a signal, or by a notice of its cloud. It goes between two steps."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

from ...process.signal_names import signal_name
from ...wire.rate_limited_log import RateLimitedLog

logger = logging.getLogger(__name__)

Notice = Callable[[], float | None]
"""Returns the seconds that are left for this process, or None as long as nobody wants it to go."""
POLL_S = 5.0


class LeaveRequest:
    """Whether this member was asked to leave, and why. Any thread, and signal handlers, may ask."""

    def __init__(self) -> None:
        self._reason: str | None = None  # written once, by one assignment: a signal handler can't take a lock
        self.seconds_left: float | None = None
        """As the first notice said; None: nobody knows."""

    def __bool__(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str:
        """A clause for people; empty as long as nobody has asked."""
        return self._reason or ""

    def ask(self, reason: str, seconds_left: float | None = None) -> None:
        """Leave after the present step. Only the first one counts."""
        if self._reason is None:
            self._reason, self.seconds_left = reason, seconds_left


class LeaveSignals:
    """Has signals ask for the leave, until ``close``, which sets the handlers before back. Main thread only.

    A signal that comes again changes nothing: who sent it ends the process with SIGKILL if it takes too long.
    """

    def __init__(self, signals: Iterable[signal.Signals], request: LeaveRequest) -> None:
        """Raises ValueError for a signal that can't be handled, or from another thread."""
        self._request = request
        self._before: list[tuple[signal.Signals, Any]] = []
        try:
            for each in signals:
                self._before.append((each, signal.signal(each, self._received)))
        except (OSError, ValueError) as error:
            self.close()
            raise ValueError(
                f"leave_on={each!r}: {error}. Signals can be handled on the main thread only; elsewhere give "
                "leave_on=() and call job.leave()"
            ) from None

    def _received(self, signum: int, frame: FrameType | None) -> None:
        self._request.ask(f"it got {signal_name(signum)}")

    def close(self) -> None:
        """Idempotent."""
        while self._before:
            signum, before = self._before.pop()
            if signal.getsignal(signum) == self._received:  # else somebody has set another one since
                signal.signal(signum, signal.SIG_DFL if before is None else before)


def default_signals(*, is_launched: bool) -> tuple[signal.Signals, ...]:
    """Return the signals that ask for the leave where the program says nothing.

    Under the launcher these are SIGTERM, as ``multiworld drain`` sends it, and SIGINT, as after Ctrl-C; but not what
    the program handles itself, and none if it joins on a thread that can't.
    """
    if not is_launched or threading.current_thread() is not threading.main_thread():
        return ()
    defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    return tuple(each for each, default in defaults.items() if signal.getsignal(each) == default)


class NoticePoller:
    """Asks every notice now and then, on a thread of its own, until one says that this process must go."""

    def __init__(self, notices: Sequence[Notice], request: LeaveRequest, *, every_s: float = POLL_S) -> None:
        self._notices, self._request, self._every_s = notices, request, every_s
        self._failed = RateLimitedLog(logger.warning)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="multiworld-notices", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._is_over.is_set():
            for notice in self._notices:
                try:
                    left = notice()
                except Exception as error:
                    # a service that can't be reached says nothing about this host, and training goes on
                    self._failed("a notice could not be read, and is asked again: %s: %s", type(error).__name__, error)
                    continue
                if left is not None:
                    self._request.ask(f"it was given notice: {left:.0f} s are left", left)
                    return
            self._is_over.wait(self._every_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Idempotent. A notice that is being asked ends by itself; nobody waits longer for it."""
        self._is_over.set()
        self._thread.join(timeout_s)
