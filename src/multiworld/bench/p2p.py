"""Measure how fast tensors go from one process to another, and how long a round trip takes, beside raw Gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from .bounds import Bound
from .options import Options
from .report import Line
from .samples import Pairs, median
from .team import Team

__all__ = ["ABOUT", "measure"]

T = TypeVar("T")

ABOUT = (
    "Two processes on loopback. Throughput: one way, 4 messages under way. Round trip: of one tensor there and back. "
    "Raw Gloo blocks; it has no asyncio API to compare with."
)
PROGRAM = "multiworld.bench.p2p_member:run"
RAW = "raw"
APIS = ("asyncio", "blocking")
WINDOW = 4
PAIRS_PER_ROUND = 3  # the speed of a shared machine changes within a second: short slices, and many of them


@dataclass(frozen=True)
class Size:
    """A message size, and how many messages make a slice long enough to time (0.05 s) but short enough to pair."""

    label: str
    size_bytes: int
    count: int
    quick_count: int

    def count_for(self, options: Options) -> int:
        return self.quick_count if options.quick else self.count


STREAMS = (
    Size("4 kB", 4_000, 1_500, 400),
    Size("40 kB", 40_000, 800, 200),
    Size("400 kB", 400_000, 200, 40),
    Size("4 MB", 4_000_000, 40, 10),
    Size("64 MB", 64_000_000, 8, 4),
)
ECHOES = (Size("4 B", 4, 400, 100), Size("4 kB", 4_000, 400, 100))
STREAM_BOUNDS: Mapping[tuple[str, str], float] = {
    ("4 MB", "gloo, asyncio"): 0.95,
    ("400 kB", "gloo, asyncio"): 0.85,
    ("4 MB", "tcp, asyncio"): 0.75,
    ("64 MB", "tcp, asyncio"): 0.75,
}
ECHO_BOUNDS: Mapping[tuple[str, str], Bound] = {
    ("4 B", "gloo, asyncio"): Bound.above_reference_at_most(100),
    ("4 B", "tcp, asyncio"): Bound.above_reference_at_most(40),
    ("4 B", "tcp, blocking"): Bound.ratio_at_most(1.0),
}


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return a line for each size and lane."""
    with Team(PROGRAM, 2) as team:
        team.all("meet", **team.lead("serve"))
        team.all("open", backends=options.backends)
        lines = []
        for size in STREAMS:
            note(f"throughput at {size.label}")
            lines += _streams(team, size, options)
        for size in ECHOES:
            note(f"round trip at {size.label}")
            lines += _echoes(team, size, options)
    return lines


def _streams(team: Team, size: Size, options: Options) -> list[Line]:
    count = size.count_for(options)
    team.all("allocate", size_bytes=size.size_bytes, window=WINDOW)

    def rate(lane: str) -> float:
        took_s: float = team.lead("stream", lane=lane, count=count)
        return size.size_bytes * count / took_s / 1e9

    lines = []
    for lane, samples in _alternate(rate, options).items():
        rates, raw_rates = zip(*samples, strict=True)
        limit = STREAM_BOUNDS.get((size.label, lane))
        bound = None if limit is None else Bound.ratio_at_least(limit)
        lines.append(Line.of_pairs(f"{size.label}, {lane}", "GB/s", Pairs(rates, raw_rates), bound))
    return lines


def _echoes(team: Team, size: Size, options: Options) -> list[Line]:
    def times_s(lane: str) -> tuple[float, float]:
        middle_s, tail_s = team.lead("echo", lane=lane, size_bytes=size.size_bytes, count=size.count_for(options))
        return middle_s, tail_s

    lines = []
    for lane, samples in _alternate(times_s, options).items():
        ours, raw = zip(*samples, strict=True)
        medians = Pairs([middle_s * 1e6 for middle_s, _ in ours], [middle_s * 1e6 for middle_s, _ in raw])
        tails = {
            "p99": median([tail_s * 1e6 for _, tail_s in ours]),
            "raw p99": median([tail_s * 1e6 for _, tail_s in raw]),
        }
        bound = ECHO_BOUNDS.get((size.label, lane))
        lines.append(Line.of_pairs(f"round trip {size.label}, {lane}", "µs", medians, bound, tails))
    return lines


def _alternate(measure: Callable[[str], T], options: Options) -> dict[str, list[tuple[T, T]]]:
    """Return samples of each of our lanes, each with one of raw Gloo that was taken right before it."""
    pairs: dict[str, list[tuple[T, T]]] = {lane: [] for lane in _lanes(options)}
    for number in range(PAIRS_PER_ROUND * options.rounds + 1):
        for lane, samples in pairs.items():
            raw = measure(RAW)
            ours = measure(lane)
            if number > 0:  # the first round touches new memory
                samples.append((ours, raw))
    return pairs


def _lanes(options: Options) -> list[str]:
    return [f"{backend}, {api}" for backend in options.backends for api in APIS]
