"""Measure collectives on a group of processes, lane by lane, each beside raw Gloo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .options import Options, Size
from .report import Bound, Line
from .samples import Pairs, alternate
from .team import Team

MEMBER = "group_member:GroupMember"


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
