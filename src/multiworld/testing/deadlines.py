"""The one place that scales every timeout of tests, so that a slow machine needs one setting only."""

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
