"""Every timeout of tests: scaled in one place, so that a slow machine needs one setting only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SCALE_VARIABLE = "MULTIWORLD_TEST_TIMEOUT_SCALE"


def scaled(seconds: float) -> float:
    """Return ``seconds`` times the factor in ``MULTIWORLD_TEST_TIMEOUT_SCALE`` (default 1, must be positive)."""
    text = os.environ.get(SCALE_VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ValueError(f"{SCALE_VARIABLE} is {text!r}; it must be a positive number")
    return seconds * factor


class Deadline:
    """A point in time, ``scaled(timeout_s)`` from now on the monotonic clock."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = scaled(timeout_s)
        self.at = time.monotonic() + self.timeout_s

    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.at


def wait_until(condition: Callable[[], bool], timeout_s: float, *, poll_s: float = 0.01) -> bool:
    """Block until ``condition()`` holds, and return whether it did within the scaled time.

    Only for conditions that nothing announces, such as a row in ``/proc``; where there is an event, wait for that.
    """
    deadline = Deadline(timeout_s)
    while not condition():
        if deadline.expired:
            return False
        time.sleep(min(poll_s, deadline.remaining_s()))
    return True


# What tests of faults allow: what is promised, with room for a machine that is busy with other things.
KILL_S = scaled(1.0)  # from SIGKILL until every survivor knows; promised: 0.25 s for 99 of 100
PENDING_S = scaled(0.25)  # from knowing until every pending operation has raised; promised: 0.05 s
STOP_S = scaled(1.0)  # from the end of the lease until a stopped peer is known as such; promised: 0.25 s
CUT_S = scaled(4.0)  # from a cut network until both sides know, with default settings; promised: 2.5 s
CANCEL_S = scaled(0.25)  # how late ``wait_for`` may return, and a deadline may be; promised: 0.05 s
STALL_S = scaled(0.2)  # for how long the event loop may stand still meanwhile; promised: 0.02 s
