"""Measure messages between two processes, lane by lane, each beside raw Gloo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .options import Options, Size
from .report import Bound, Line
from .samples import RAW, Pairs, alternate, median
from .team import Team

Bounds = Mapping[tuple[str, str], Bound]
"""By the label of the size and the name of the lane."""

MEMBER = "pair_member:PairMember"
WINDOW = 4
MEMCPY = "memcpy"


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
