"""Measure how long a world of two takes to form on a running store, and how much other worlds feel of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from .bounds import Bound
from .options import Options
from .report import Line
from .samples import Pairs, joint_spans, median, percentile
from .team import Team

__all__ = ["ABOUT", "measure"]

JOINS_PER_S = 10.0
ABOUT = (
    "Two processes on loopback and a running store. Time from the moment the first of the two calls join until both "
    "have the world; raw Gloo: until both have the group. Other worlds: throughput of a stream of 400 kB tensors "
    f"between the same two processes while they form {JOINS_PER_S:g} further worlds a second, and without, in turn; "
    "each slice with joins is compared with the mean of those without before and after it."
)
PROGRAM = "multiworld.bench.join_member:run"
NUM_JOINS, QUICK_JOINS = 200, 20
NUM_FIRST, QUICK_FIRST = 30, 4
SLICE = 10
QUICK_SLICE = 5
JOIN_BOUND = Bound.at_most(20)
DIP_BOUND = Bound.ratio_at_least(0.95)
TRAFFIC_BYTES = 400_000
TRAFFIC_S, QUICK_TRAFFIC_S = 0.3, 0.3  # short: what else the machine does changes from second to second
NUM_SLICES, QUICK_SLICES = 251, 3
WARM_UP, CALIBRATION = 500, 500
RECENT = 5  # quiet slices from which the number of messages for the next is taken
RAW = "raw"


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return a line for each backend and for what another world's traffic loses."""
    with Team(PROGRAM, 2) as team:
        team.all("meet", **team.lead("serve"))
        team.all("open", traffic_backend="tcp", size_bytes=TRAFFIC_BYTES)
        note("further worlds between two processes")
        lines = _further(team, options)
        for backend in options.backends:
            note(f"first world between two processes, {backend}")
            lines.append(_first(team, backend, options))
        for backend in options.backends:
            note(f"traffic beside joins, {backend}")
            lines.append(_dip(team, backend, options))
    return lines


def _further(team: Team, options: Options) -> list[Line]:
    total, share = (QUICK_JOINS, QUICK_SLICE) if options.quick else (NUM_JOINS, SLICE)
    times: dict[str, list[float]] = {lane: [] for lane in (RAW, *options.backends)}
    slices: dict[str, list[float]] = {lane: [] for lane in times}
    for _ in range(total // share):
        for lane, samples in times.items():
            moments = team.all("form_raw", count=share) if lane == RAW else team.all("form", backend=lane, count=share)
            found = _durations_ms(moments)
            samples += found
            slices[lane].append(median(found))
    return [
        Line.of_pairs(
            f"join, {lane}",
            "ms",
            Pairs(slices[lane], slices[RAW]),
            JOIN_BOUND,
            {**_spread(times[lane]), "raw p95": percentile(times[RAW], 95)},
        )
        for lane in options.backends
    ]


def _first(team: Team, backend: str, options: Options) -> Line:
    times = _durations_ms(team.all("form_first", backend=backend, count=QUICK_FIRST if options.quick else NUM_FIRST))
    return Line(
        name=f"join, first between the two, {backend}",
        unit="ms",
        value=median(times),
        bound=JOIN_BOUND,
        details=_spread(times),
    )


def _dip(team: Team, backend: str, options: Options) -> Line:
    """Compare each slice beside joins with the (geometric) mean of the quiet ones before and after it."""
    slice_s, num_slices = (QUICK_TRAFFIC_S, QUICK_SLICES) if options.quick else (TRAFFIC_S, NUM_SLICES)
    team.lead("stream", count=WARM_UP, joins_per_s=0.0, backend=backend)
    quiet, ours, num_joined = [_quiet_rate(team, backend, CALIBRATION)], [], 0
    for _ in range(num_slices):
        count = max(1, int(slice_s * median(quiet[-RECENT:]) * 1e9 / TRAFFIC_BYTES))
        took_s, num = team.lead("stream", count=count, joins_per_s=JOINS_PER_S, backend=backend)
        ours.append(_rate(count, took_s))
        num_joined += num
        quiet.append(_quiet_rate(team, backend, count))
    pairs = Pairs(ours, [math.sqrt(before * after) for before, after in itertools.pairwise(quiet)])
    low, high = pairs.ratio_quartiles
    return Line(
        name=f"another world's throughput beside joins, {backend}",
        unit="GB/s",
        value=median(ours),
        ratio=pairs.ratio,
        ratio_quartiles=(low, high),
        bound=DIP_BOUND,
        details={"without joins": median(quiet), "joins": num_joined},
    )


def _quiet_rate(team: Team, backend: str, count: int) -> float:
    return _rate(count, team.lead("stream", count=count, joins_per_s=0.0, backend=backend)[0])


def _rate(count: int, took_s: float) -> float:
    return count * TRAFFIC_BYTES / took_s / 1e9


def _durations_ms(moments: list[list[tuple[float, float]]]) -> list[float]:
    return [seconds * 1e3 for seconds in joint_spans(moments)]


def _spread(times: list[float]) -> Mapping[str, float]:
    return {"p95": percentile(times, 95), "max": max(times), "n": len(times)}
