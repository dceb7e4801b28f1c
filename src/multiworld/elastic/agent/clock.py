"""The time of events: microseconds since the epoch, of a clock that never steps, so that differences can be trusted."""

from __future__ import annotations

import time

_OFFSET_NS = time.time_ns() - time.monotonic_ns()


def now_us() -> int:
    return (time.monotonic_ns() + _OFFSET_NS) // 1000
