"""Measure what 256 worlds of two cost one process: threads, descriptors, memory, and time while nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .options import Options
from .report import Bound, Line
from .samples import RAW
from .team import Team

NUM_WORLDS, QUICK_WORLDS = 256, 32
NUM_RECEIVES, QUICK_RECEIVES = 1_000, 100
IDLE_S, QUICK_IDLE_S = 10.0, 1.0
CALLED_FOR = {"gloo"}  # of these a world holds all that it ever does only after large payloads
ABOUT = (
    f"Two processes that share {NUM_WORLDS} worlds; figures of one of them. Threads, descriptors and memory are what "
    "each world after the first adds, on gloo 6 s after large payloads both ways; raw Gloo: each group, on one "
    "store. Idle time includes that of helper processes."
)
BACKENDS = ("tcp", "gloo")
MEMBER = "scale_member:ScaleMember"
THREADS: Mapping[str, float] = {"tcp": 0, "gloo": 3}
MAX_DESCRIPTORS = 2
MAX_MEGABYTES = 0.1
MAX_IDLE_PERCENT = 3
MAX_PENDING_PERCENT = 2
CORE = "% of a core"


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return the lines of each backend."""
    num_worlds = QUICK_WORLDS if options.quick else NUM_WORLDS
    note(f"{num_worlds} raw Gloo groups")
    with Team(MEMBER, 2) as team:
        raw = _grow(team, RAW, num_worlds)
        raw["idle"] = _idle_percent(team, options)
    lines = []
    for backend in options.backends:
        note(f"{num_worlds} worlds, {backend}")
        with Team(MEMBER, 2) as team:  # a new pair: memory that was given back would hide what is taken
            lines += _costs(team, backend, num_worlds, raw)
            note(f"idle, {backend}")
            lines += _idle(team, backend, num_worlds, raw["idle"], options)
    return lines


def _grow(team: Team, lane: str, num_worlds: int) -> dict[str, float]:
    """Form the worlds; return what each but the first added."""
    _form(team, lane, first=0, count=1)
    before: dict[str, Any] = team.lead("held")
    took_s = _form(team, lane, first=1, count=num_worlds - 1)
    after: dict[str, Any] = team.lead("held")
    added = {name: (after[name] - before[name]) / (num_worlds - 1) for name in before}
    return {**added, "threads_in_all": after["threads"], "took_s": took_s}


def _form(team: Team, lane: str, first: int, count: int) -> float:
    """Form worlds and let them hold all that they ever do; return the seconds that forming took."""
    took_s: float = max(team.all("form", lane=lane, first=first, count=count))
    if lane in CALLED_FOR:
        team.all("send_large", first=first)
    return took_s


def _costs(team: Team, backend: str, num_worlds: int, raw: Mapping[str, float]) -> list[Line]:
    added = _grow(team, backend, num_worlds)
    threads = THREADS.get(backend)
    return [
        Line(
            name=f"{backend}: threads per world",
            unit="",
            value=added["threads"],
            reference=raw["threads"],
            bound=None if threads is None else Bound.at_most(threads),
            details={"in all": added["threads_in_all"], "raw in all": raw["threads_in_all"]},
        ),
        Line(
            name=f"{backend}: descriptors per world",
            unit="",
            value=added["descriptors"],
            reference=raw["descriptors"],
            bound=Bound.at_most(MAX_DESCRIPTORS),
        ),
        Line(
            name=f"{backend}: memory per world",
            unit="MB",
            value=added["resident_bytes"] / 1e6,
            reference=raw["resident_bytes"] / 1e6,
            bound=Bound.at_most(MAX_MEGABYTES),
        ),
        Line(
            name=f"{backend}: time to form {num_worlds - 1} worlds",
            unit="s",
            value=added["took_s"],
            reference=raw["took_s"],
        ),
    ]


def _idle(team: Team, backend: str, num_worlds: int, raw_percent: float, options: Options) -> list[Line]:
    idle_percent = _idle_percent(team, options)
    idle = Line(
        name=f"{backend}: {num_worlds} worlds idle",
        unit=CORE,
        value=idle_percent,
        reference=raw_percent,
        bound=Bound.at_most(MAX_IDLE_PERCENT),
    )
    num_receives = QUICK_RECEIVES if options.quick else NUM_RECEIVES
    receiver = team.members[0]
    threads: int = receiver.ask("held")["threads"]
    receiver.ask("post", count=num_receives)
    pending = _idle_percent(team, options)
    more: int = receiver.ask("held")["threads"] - threads
    team.all("complete", count=num_receives)
    return [
        idle,
        Line(
            name=f"{backend}: {num_receives:,} receives pending, besides",
            unit=CORE,
            value=max(0.0, pending - idle_percent),
            bound=Bound.at_most(MAX_PENDING_PERCENT),
        ),
        Line(
            name=f"{backend}: threads that {num_receives:,} pending receives add",
            unit="",
            value=more,
            bound=Bound.at_most(0),
        ),
    ]


def _idle_percent(team: Team, options: Options) -> float:
    return 100 * float(team.lead("idle", seconds=QUICK_IDLE_S if options.quick else IDLE_S))
