"""Measure what our channels must reach: the table of ratios to raw Gloo that they were built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..testing import Network, hosts_available
from . import collectives, memory, p2p
from .options import Options, Size
from .report import Bound, Line
from .samples import ASYNCIO, BLOCKING, Pairs, alternate, lane_names
from .team import Team

ABOUT = (
    "Processes of one host; over veth: of two network namespaces. Throughput: one way, 4 messages under way: of 4 "
    "tasks, or of one thread that blocks. Round trip: of one tensor there and back. Collectives: time of one call, "
    "averaged over calls one after the other; the size is that of each tensor in the call. After every slice the data "
    "is checked. Memory: anonymous and shared, of both processes; while moving: the most beside the tensor since "
    "before the world was formed. A step of DDP trains a model of 0.5 million parameters on two processes."
)
BACKENDS = ("shm",)
SHM, TCP = "shm", "tcp"
STREAMS = (
    Size("40 kB", 40_000, 2_000, 200),
    Size("400 kB", 400_000, 400, 40),
    Size("4 MB", 4_000_000, 60, 4),
    Size("64 MB", 64_000_000, 8, 2),
)
LARGEST = STREAMS[-1]
TCP_STREAMS = STREAMS[2:]
ECHOES = (Size("4 B", 4, 400, 50), Size("4 kB", 4_000, 400, 50))
VETH_ECHO = ECHOES[1]
REDUCTIONS = (
    Size("4 B", 4, 100, 10),
    Size("4 kB", 4_000, 100, 10),
    Size("4 MB", 4_000_000, 8, 2),
    Size("64 MB", 64_000_000, 2, 1),
)
LARGE_BYTES = 4_000_000  # from here on asyncio's own time is nothing: both ways to call are held to the bound
OTHERS = ("broadcast", "all_gather", "reduce_scatter")
OTHERS_SIZE = Size("4 MB", 4_000_000, 4, 2)
TRAINING_MEMBER = "training_member:TrainingMember"
NUM_STEPS, QUICK_STEPS = 10, 2
MAX_LOSS_DIFFERENCE = 1e-6
OVER_VETH = "over veth: "


def _of_both(backend: str, limits: Mapping[str, float]) -> p2p.Bounds:
    return {
        (label, lane): Bound.ratio_at_least(limit) for label, limit in limits.items() for lane in lane_names([backend])
    }


STREAM_BOUNDS: p2p.Bounds = {
    **_of_both(SHM, {"40 kB": 2.0, "400 kB": 2.5, "4 MB": 2.8, "64 MB": 2.2}),
    **_of_both(TCP, {"4 MB": 1.0, "64 MB": 1.0}),
}
MEMCPY_BOUNDS = _of_both(SHM, {"64 MB": 0.7})
ECHO_BOUNDS: p2p.Bounds = {
    (size.label, f"{SHM}, {api}"): Bound.ratio_at_most(limit)
    for size in ECHOES
    for api, limit in ((BLOCKING, 0.5), (ASYNCIO, 1.0))
}
VETH_BOUNDS: p2p.Bounds = {
    (VETH_ECHO.label, f"{TCP}, {BLOCKING}"): Bound.ratio_at_most(1.0),
    **_of_both(TCP, {LARGEST.label: 1.0}),
}
REDUCTION_LIMITS: Mapping[int, tuple[float, ...]] = {2: (0.7, 0.7, 0.4, 0.5), 4: (0.7, 0.3, 0.7, 0.7)}
OTHERS_LIMIT = 0.5
MEMORY_LIMITS = memory.Limits(idle_megabytes=1.0, moving_buffers=2.0)
STEP_BOUNDS = {SHM: Bound.ratio_at_most(1.0)}


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return the lines of the table; ``options.backends`` stand in for shared memory, whose bounds are its own."""
    lines = _pair(options, note)
    for num_ranks in REDUCTION_LIMITS:
        lines += _group(num_ranks, options, note)
    lines += _messages_over_veth(TCP, VETH_ECHO, LARGEST, options, VETH_BOUNDS, note)
    for backend in options.backends:
        note(f"memory, {backend}")
        lines += memory.held(backend, options, MEMORY_LIMITS if backend == SHM else None)
    note("DDP step")
    return lines + _training_steps(options.backends, options, STEP_BOUNDS)


def _pair(options: Options, note: Callable[[str], None]) -> list[Line]:
    backends = list(dict.fromkeys((*options.backends, TCP)))
    lanes = lane_names(options.backends)
    lines = []
    with Team(p2p.MEMBER, 2) as team:
        team.all("open", backends=backends)
        for size in STREAMS:
            note(f"throughput at {size.label}")
            chosen = lane_names(backends) if size in TCP_STREAMS else lanes
            lines += p2p.throughput(team, size, chosen, options, STREAM_BOUNDS)
        note("share of memcpy")
        lines += p2p.memcpy_share(team, LARGEST, lanes, options, MEMCPY_BOUNDS)
        for size in ECHOES:
            note(f"round trip at {size.label}")
            lines += p2p.round_trips(team, size, lanes, options, ECHO_BOUNDS)
    return lines


def _group(num_ranks: int, options: Options, note: Callable[[str], None]) -> list[Line]:
    cases = [("all_reduce", *case) for case in zip(REDUCTIONS, REDUCTION_LIMITS[num_ranks], strict=True)]
    if num_ranks == max(REDUCTION_LIMITS):
        cases += [(kind, OTHERS_SIZE, OTHERS_LIMIT) for kind in OTHERS]
    lanes = lane_names(options.backends)
    lines = []
    with Team(collectives.MEMBER, num_ranks) as team:
        team.all("open", backends=options.backends)
        for kind, size, limit in cases:
            note(f"{num_ranks} ranks, {kind} {size.label}")
            bound = Bound.ratio_at_most(limit)
            bounds = {
                f"{SHM}, {api}": bound
                for api in (BLOCKING, ASYNCIO)
                if api == BLOCKING or size.size_bytes >= LARGE_BYTES
            }
            lines += collectives.collective(team, kind, size, lanes, options.num_pairs, options, bounds)
    return lines


def _training_steps(backends: Sequence[str], options: Options, bounds: Mapping[str, Bound]) -> list[Line]:
    """Return for each backend the time of a step of two processes, and how far its losses are from the reference's.

    Both train the same model from the same seed on the same data.
    """
    count = QUICK_STEPS if options.quick else NUM_STEPS
    lines = []
    with Team(TRAINING_MEMBER, 2) as team:
        team.all("open", backends=backends)

        def time_ms(lane: str) -> float:
            took_s: float = max(team.all("train", lane=lane, count=count))
            return took_s * 1e3

        for backend, samples in alternate(time_ms, backends, options.num_pairs).items():
            lines.append(Line.of_pairs(f"DDP step, {backend}", "ms", Pairs.of(samples), bounds.get(backend)))
            apart: float = max(team.all("loss_difference", lane=backend))
            agree = Bound.at_most(MAX_LOSS_DIFFERENCE)
            lines.append(Line(name=f"DDP losses apart, {backend}", unit="", value=apart, bound=agree))
    return lines


def _messages_over_veth(
    backend: str, echo: Size, stream: Size, options: Options, bounds: p2p.Bounds, note: Callable[[str], None]
) -> list[Line]:
    """Return round trips of one size and the throughput of another; where there can be no hosts, lines that say why."""
    lanes = lane_names([backend])
    reason = hosts_available()
    if reason is not None:
        names = [f"round trip {echo.label}", stream.label]
        return [Line.not_measured(f"{OVER_VETH}{name}, {lane}", reason) for name in names for lane in lanes]
    with Network(2) as network, Team(p2p.MEMBER, 2, network.hosts) as team:
        team.all("open", backends=[backend])
        note(f"{OVER_VETH}round trip at {echo.label}")
        lines = p2p.round_trips(team, echo, lanes, options, bounds, OVER_VETH)
        note(f"{OVER_VETH}throughput at {stream.label}")
        return lines + p2p.throughput(team, stream, lanes, options, bounds, OVER_VETH)
