"""Measure how long a world of two takes to form on a running store, and how much other worlds feel of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from .options import Options
from .report import Bound, Line
from .samples import RAW, Pairs, joint_spans, median, percentile
from .team import Team

WINDOW_S = 0.1  # with one join each: as beside ten joins a second
ABOUT = (
    "Two processes on loopback and a running store. Time from the moment the first of the two calls join until both "
    "have the world; raw Gloo: until both have the group. Other worlds: throughput of a stream of 400 kB tensors "
    f"between the same two processes, in windows of {WINDOW_S:g} s; in every second one they form a further "
    "world; each such window is compared with the mean of those before and after it."
)
BACKENDS = ("tcp", "gloo")
MEMBER = "join_member:JoinMember"
NUM_JOINS, QUICK_JOINS = 200, 20
NUM_FIRST, QUICK_FIRST = 30, 4
SLICE = 10
QUICK_SLICE = 5
JOIN_BOUND = Bound.at_most(20)
DIP_BOUND = Bound.ratio_at_least(0.95)
TRAFFIC_BYTES = 400_000
NUM_BESIDE, QUICK_BESIDE = 600, 3
BESIDE_PER_STREAM = 20
MARGIN = 0.2  # how much longer a stream is planned than its windows, which end with it
WARM_UP, CALIBRATION = 500, 500
RECEIVER = 1


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return a line for each backend and for what another world's traffic loses."""
    with Team(MEMBER, 2) as team:
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
    """Compare each window with a join with the (geometric) mean of the quiet ones before and after it."""
    num_joins = QUICK_BESIDE if options.quick else NUM_BESIDE
    per_stream = min(num_joins, BESIDE_PER_STREAM)
    duration_s = (2 * per_stream + 1) * WINDOW_S
    team.lead("stream", count=WARM_UP)
    per_s = CALIBRATION / team.lead("stream", count=CALIBRATION)
    ours: list[float] = []
    reference: list[float] = []
    quiet: list[float] = []
    while len(ours) < num_joins:
        count = int((1 + MARGIN) * duration_s * per_s)
        plan = {"count": count, "num_joins": per_stream, "window_s": WINDOW_S, "backend": backend}
        counted = team.all("stream_beside_joins", **plan)[RECEIVER]
        rates = _window_rates(counted)
        for previous, rate, following in zip(rates[::2], rates[1::2], rates[2::2], strict=False):
            if previous and rate and following:
                ours.append(rate)
                reference.append(math.sqrt(previous * following))
        quiet += filter(None, rates[::2])
        per_s = median(list(filter(None, rates)) or [2 * per_s])  # none: it was over within the first window
    pairs = Pairs(ours, reference)
    low, high = pairs.ratio_quartiles
    return Line(
        name=f"another world's throughput beside joins, {backend}",
        unit="GB/s",
        value=_gigabytes(median(ours)),
        ratio=pairs.ratio,
        ratio_quartiles=(low, high),
        bound=DIP_BOUND,
        details={"without joins": _gigabytes(median(quiet)), "joins": len(ours)},
    )


def _window_rates(counted: Sequence[tuple[float, int]]) -> list[float]:
    """Return the messages a second of each window; 0 for one that tells nothing, as the process stood still."""
    return [
        (after - before) / (end - begin) if end - begin > WINDOW_S / 2 else 0.0
        for (begin, before), (end, after) in itertools.pairwise(counted)
    ]


def _gigabytes(num_messages: float) -> float:
    return num_messages * TRAFFIC_BYTES / 1e9


def _durations_ms(moments: list[list[tuple[float, float]]]) -> list[float]:
    return [seconds * 1e3 for seconds in joint_spans(moments)]


def _spread(times: list[float]) -> Mapping[str, float]:
    return {"p95": percentile(times, 95), "max": max(times), "n": len(times)}
