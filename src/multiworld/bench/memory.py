"""Measure the memory that worlds of two hold while they are idle, and while one moves a large tensor."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .options import Options
from .report import Bound, Line
from .team import Team

MEMBER = "memory_member:MemoryMember"
SIZE_BYTES = 64_000_000
NUM_WORLDS, QUICK_WORLDS = 20, 2
NUM_TRANSFERS, QUICK_TRANSFERS = 20, 2
SETTLE_S, QUICK_SETTLE_S = 2.0, 0.2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What worlds may hold: ``moving_buffers`` times the buffers through which their channel moves a tensor."""

    idle_megabytes: float
    moving_buffers: float


def held(backend: str, options: Options, limits: Limits | None = None) -> list[Line]:
    """Return what worlds hold, in both processes: the most while 64 MB move; then each, formed, and idle after use."""
    with Team(MEMBER, 2) as team:
        team.all("allocate", size_bytes=SIZE_BYTES)
        return [_moving(team, backend, options, limits), *_idle(team, backend, options, limits)]


def _moving(team: Team, backend: str, options: Options, limits: Limits | None) -> Line:
    peaks: list[int] = team.all("move", backend=backend, count=QUICK_TRANSFERS if options.quick else NUM_TRANSFERS)
    bound = None
    if limits is not None:
        bound = Bound.at_most(limits.moving_buffers * team.members[0].ask("buffer_bytes") / 1e6)
    return Line(
        name=f"memory while moving 64 MB, {backend}",
        unit="MB",
        value=sum(peaks) / 1e6,
        bound=bound,
        details={"sender": peaks[0] / 1e6, "receiver": peaks[1] / 1e6},
    )


def _idle(team: Team, backend: str, options: Options, limits: Limits | None) -> list[Line]:
    """Return what each world but the first adds after it was formed, and idle again after a tensor each way."""
    num_worlds = QUICK_WORLDS if options.quick else NUM_WORLDS
    settle_s = QUICK_SETTLE_S if options.quick else SETTLE_S
    team.all("form", backend=backend, count=1)
    before = _held_after_use(team, settle_s)
    team.all("form", backend=backend, count=num_worlds)
    formed = sum(team.all("held"))
    used = _held_after_use(team, settle_s)
    return [
        Line(
            name=f"memory of an idle world, {backend}, {when}",
            unit="MB",
            value=(after - before) / num_worlds / 1e6,
            bound=None if limits is None else Bound.at_most(limits.idle_megabytes),
        )
        for when, after in (("formed", formed), ("used", used))
    ]


def _held_after_use(team: Team, settle_s: float) -> int:
    """Use each world that is unused, wait; return the bytes that both processes hold then."""
    team.all("use")
    time.sleep(settle_s)
    return sum(team.all("held"))
