"""The names of signals, real-time signals included, and how a process ended. Pure."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 37`` for one that has no name, as those between SIGRTMIN and SIGRTMAX."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_ended(status: int | None) -> str:
    """Return how a process ended, as the end of a sentence about it. ``status``: negative for a signal."""
    if status is None:
        return "has ended"
    return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
