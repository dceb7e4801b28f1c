"""Measure how fast tensors go from one process to another, and how long a round trip takes, beside raw Gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .options import Options, Size
from .report import Bound, Line
from .samples import RAW, Pairs, alternate, lane_names, median
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
Bounds = Mapping[tuple[str, str], Bound]
"""By the label of the size and the name of the lane."""
MEMBER = "pair_member:PairMember"
WINDOW = 4
MEMCPY = "memcpy"
STREAM_BOUNDS: Bounds = {
    ("4 MB", "gloo, asyncio"): Bound.ratio_at_least(0.95),
    ("400 kB", "gloo, asyncio"): Bound.ratio_at_least(0.85),
    ("4 MB", "tcp, asyncio"): Bound.ratio_at_least(0.75),
    ("64 MB", "tcp, asyncio"): Bound.ratio_at_least(0.75),
}
ECHO_BOUNDS: Bounds = {
    ("4 B", "gloo, asyncio"): Bound.above_reference_at_most(100),
    ("4 B", "tcp, asyncio"): Bound.above_reference_at_most(40),
    ("4 B", "tcp, blocking"): Bound.ratio_at_most(1.0),
}


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return a line for each size and lane."""
    lanes = lane_names(options.backends)
    lines = []
    with Team(MEMBER, 2) as team:
        team.all("open", backends=options.backends)
        for size in STREAMS:
            note(f"throughput at {size.label}")
            lines += throughput(team, size, lanes, options, STREAM_BOUNDS)
        for size in ECHOES:
            note(f"round trip at {size.label}")
            lines += round_trips(team, size, lanes, options, ECHO_BOUNDS)
    return lines


def throughput(
    team: Team, size: Size, lanes: Sequence[str], options: Options, bounds: Bounds, prefix: str = ""
) -> list[Line]:
    """Return a line for each lane: GB/s one way, 4 messages under way."""
    return [
        Line.of_pairs(f"{prefix}{size.label}, {lane}", "GB/s", pairs, bounds.get((size.label, lane)))
        for lane, pairs in _rates(team, size, lanes, options).items()
    ]


def memcpy_share(team: Team, size: Size, lanes: Sequence[str], options: Options, bounds: Bounds) -> list[Line]:
    """Return a line for each lane: as ``throughput``, beside what one thread copies while the other process is idle."""
    note = "reference: memcpy on one thread"
    return [
        Line.of_pairs(f"{size.label}, {lane}, of {MEMCPY}", "GB/s", pairs, bounds.get((size.label, lane)), note=note)
        for lane, pairs in _rates(team, size, lanes, options, reference=MEMCPY).items()
    ]


def round_trips(
    team: Team, size: Size, lanes: Sequence[str], options: Options, bounds: Bounds, prefix: str = ""
) -> list[Line]:
    """Return a line for each lane: microseconds of one tensor there and back."""
    count = size.count_for(options)

    def times_s(lane: str) -> tuple[float, float]:
        middle_s, tail_s = team.lead("echo", lane=lane, size_bytes=size.size_bytes, count=count)
        return middle_s, tail_s

    lines = []
    for lane, samples in alternate(times_s, lanes, options.num_pairs).items():
        ours, raw = zip(*samples, strict=True)
        medians = Pairs([middle_s * 1e6 for middle_s, _ in ours], [middle_s * 1e6 for middle_s, _ in raw])
        tails = {
            "p99": median([tail_s * 1e6 for _, tail_s in ours]),
            "raw p99": median([tail_s * 1e6 for _, tail_s in raw]),
        }
        bound = bounds.get((size.label, lane))
        lines.append(Line.of_pairs(f"{prefix}round trip {size.label}, {lane}", "µs", medians, bound, tails))
    return lines


def _rates(team: Team, size: Size, lanes: Sequence[str], options: Options, reference: str = RAW) -> dict[str, Pairs]:
    count = size.count_for(options)
    team.all("allocate", size_bytes=size.size_bytes, window=min(WINDOW, count))

    def rate(lane: str) -> float:
        if lane == MEMCPY:
            took_s: float = team.members[0].ask("copy", count=count)
        else:
            took_s = team.lead("stream", lane=lane, count=count)
        return size.size_bytes * count / took_s / 1e9

    samples = alternate(rate, lanes, options.num_pairs, reference=reference)
    return {lane: Pairs.of(pairs) for lane, pairs in samples.items()}
