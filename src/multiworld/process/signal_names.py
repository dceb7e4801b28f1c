"""The name of a signal, real-time signals included. Pure."""

from __future__ import annotations

import signal

__all__ = ["signal_name"]


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 37`` for one that has no name, as those between SIGRTMIN and SIGRTMAX."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
