"""Measure every collective on groups of 2 and of 4, beside raw Gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .options import Options
from .report import Line
from .samples import Pairs
from .team import Team

__all__ = ["ABOUT", "measure"]

ABOUT = (
    "2 and 4 processes on loopback. Time of one call, averaged over calls one after the other, from asyncio; raw Gloo "
    "blocks. The size is that of each tensor in the call."
)
PROGRAM = "multiworld.bench.collectives_member:run"
RAW = "raw"
GROUP_SIZES = (2, 4)
KINDS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Size:
    """A tensor size, and how many calls make a slice of about 0.1 s."""

    label: str
    size_bytes: int
    count: int
    quick_count: int


SIZES = (Size("4 kB", 4_000, 200, 20), Size("4 MB", 4_000_000, 8, 2))
BARRIER = Size("", 4, 200, 20)


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return a line for each group size, tensor size, collective and backend."""
    lines = []
    for num_ranks in GROUP_SIZES:
        with Team(PROGRAM, num_ranks) as team:
            team.all("meet", **team.lead("serve"))
            team.all("open", backends=options.backends)
            cases = [(kind, size) for size in SIZES for kind in KINDS]
            for kind, size in (("barrier", BARRIER), *cases):
                name = f"{num_ranks} ranks, {kind} {size.label}".rstrip()
                note(name)
                lines += _compare(team, name, kind, size, options)
    return lines


def _compare(team: Team, name: str, kind: str, size: Size, options: Options) -> list[Line]:
    team.all("allocate", size_bytes=size.size_bytes)
    count = size.quick_count if options.quick else size.count
    times: dict[str, list[float]] = {lane: [] for lane in (RAW, *options.backends)}
    for number in range(options.rounds + 1):
        for lane, samples in times.items():
            took_s = max(team.all("repeat", lane=lane, kind=kind, count=count))
            if number > 0:  # the first round touches new memory
                samples.append(took_s * 1e6)
    return [Line.of_pairs(f"{name}, {lane}", "µs", Pairs(times[lane], times[RAW])) for lane in options.backends]
