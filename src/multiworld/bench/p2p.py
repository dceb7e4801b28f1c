"""Measure how fast tensors go from one process to another, and how long a round trip takes, beside raw Gloo."""

from __future__ import annotations

from collections.abc import Callable

from . import pair
from .options import Options, Size
from .report import Bound, Line
from .samples import lane_names
from .team import Team

ABOUT = (
    "Two processes on loopback. Throughput: one way, 4 messages under way: of 4 tasks, or of one thread that blocks. "
    "Round trip: of one tensor there and back. Raw Gloo blocks; it has no asyncio API to compare with."
)
BACKENDS = ("tcp", "gloo")
STREAMS = (
    Size("4 kB", 4_000, 1_500, 400),
    Size("40 kB", 40_000, 800, 200),
    Size("400 kB", 400_000, 200, 40),
    Size("4 MB", 4_000_000, 40, 10),
    Size("64 MB", 64_000_000, 8, 2),
)
ECHOES = (Size("4 B", 4, 400, 100), Size("4 kB", 4_000, 400, 100))
STREAM_BOUNDS: pair.Bounds = {
    ("4 MB", "gloo, asyncio"): Bound.ratio_at_least(0.95),
    ("400 kB", "gloo, asyncio"): Bound.ratio_at_least(0.85),
    ("4 MB", "tcp, asyncio"): Bound.ratio_at_least(0.75),
    ("64 MB", "tcp, asyncio"): Bound.ratio_at_least(0.75),
}
ECHO_BOUNDS: pair.Bounds = {
    ("4 B", "gloo, asyncio"): Bound.above_reference_at_most(100),
    ("4 B", "tcp, asyncio"): Bound.above_reference_at_most(40),
    ("4 B", "tcp, blocking"): Bound.ratio_at_most(1.0),
}


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return a line for each size and lane."""
    lanes = lane_names(options.backends)
    lines = []
    with Team(pair.MEMBER, 2) as team:
        team.all("open", backends=options.backends)
        for size in STREAMS:
            note(f"throughput at {size.label}")
            lines += pair.throughput(team, size, lanes, options, STREAM_BOUNDS)
        for size in ECHOES:
            note(f"round trip at {size.label}")
            lines += pair.round_trips(team, size, lanes, options, ECHO_BOUNDS)
    return lines
