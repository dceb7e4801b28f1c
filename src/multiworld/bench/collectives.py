"""Measure every collective on groups of 2 and of 4, beside raw Gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .options import Options, Size
from .report import Bound, Line
from .samples import ASYNCIO, Pairs, alternate
from .team import Team

ABOUT = (
    "2 and 4 processes on loopback. Time of one call, averaged over calls one after the other, from asyncio; raw Gloo "
    "blocks. The size is that of each tensor in the call."
)
BACKENDS = ("tcp", "gloo")
MEMBER = "lanes:GroupMember"
GROUP_SIZES = (2, 4)
KINDS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
SIZES = (Size("4 kB", 4_000, 100, 20), Size("4 MB", 4_000_000, 8, 2))
BARRIER = Size("", 4, 200, 20)


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return a line for each group size, tensor size, collective and backend."""
    lanes = [f"{backend}, {ASYNCIO}" for backend in options.backends]
    cases = [("barrier", BARRIER), *((kind, size) for size in SIZES for kind in KINDS)]
    lines = []
    for num_ranks in GROUP_SIZES:
        with Team(MEMBER, num_ranks) as team:
            team.all("open", backends=options.backends)
            for kind, size in cases:
                note(f"{num_ranks} ranks, {kind} {size.label}".rstrip())
                lines += collective(team, kind, size, lanes, options.rounds, options)
    return lines


def collective(
    team: Team,
    kind: str,
    size: Size,
    lanes: Sequence[str],
    num_pairs: int,
    options: Options,
    bounds: Mapping[str, Bound] | None = None,
) -> list[Line]:
    """Return a line for each lane: the time of one call, the slowest rank's. ``bounds``: of some lanes."""
    team.all("allocate", size_bytes=size.size_bytes)
    count = size.count_for(options)

    def time_us(lane: str) -> float:
        took_s: float = max(team.all("repeat", lane=lane, kind=kind, count=count))
        return took_s * 1e6

    name = f"{len(team.members)} ranks, {kind} {size.label}".rstrip()
    return [
        Line.of_pairs(f"{name}, {lane}", "µs", Pairs.of(samples), (bounds or {}).get(lane))
        for lane, samples in alternate(time_us, lanes, num_pairs).items()
    ]
