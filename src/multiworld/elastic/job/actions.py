"""What the coordinator's decisions order, and what agents report to it. Pure values, as they cross the network.

``agent``: who is to obey an order. Coordinators of the release before do not say it to the agent itself.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...wire.messages import Json, message
from ...world.launcher.news import TrainingNews
from ...world.launcher.remote_nodes import RemoteNodes
from .assignment import Assignment, Membership
from .failure import WorkerFailure


@message("start")
@dataclass(frozen=True, kw_only=True)
class Start:
    """Start a worker process, to be known as ``worker`` from then on."""

    agent: str = ""
    worker: str
    assignment: Assignment


OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGKILL)
"""What workers return that we have ended."""


@message("stop")
@dataclass(frozen=True, kw_only=True)
class Stop:
    """Send a signal to workers, and SIGKILL to those that are left after ``grace_s``."""

    agent: str = ""
    workers: tuple[str, ...]
    signum: int
    grace_s: float
    quiet: bool = False
    """Nobody asks how those end that a signal of ours ends."""


@message("kill")
@dataclass(frozen=True, kw_only=True)
class Kill:
    """Kill a worker with SIGKILL, as a fault would, so that it is taken for one."""

    agent: str = ""
    worker: str


@message("reassign")
@dataclass(frozen=True, kw_only=True)
class Reassign:
    """A running worker has another place from now on: tell it."""

    agent: str = ""
    worker: str
    assignment: Assignment


@dataclass(frozen=True, kw_only=True)
class Regroup:
    """The running workers of these hosts keep their ranks in another membership: tell them."""

    agents: tuple[str, ...]
    membership: Membership


@message("open master")
@dataclass(frozen=True, kw_only=True)
class OpenMaster:
    """Serve a fresh c10d store for a generation, where ``MASTER_ADDR`` and ``MASTER_PORT`` will point."""

    agent: str = ""
    generation: int


@message("reset")
@dataclass(frozen=True, kw_only=True)
class Reset:
    """This agent was given up: it must end its workers and come again as a new host."""

    agent: str = ""


@message("die")
@dataclass(frozen=True, kw_only=True)
class Die:
    """This agent must end as by a fault: somebody tries what happens then."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """This agent has no part in the job any more, and ends well."""

    agent: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the job ended: 0 if well, what failed, and one line for people. ``signum``: somebody ended it so."""

    status: int
    text: str
    failures: tuple[WorkerFailure, ...] = ()
    signum: int | None = None


@dataclass(frozen=True, kw_only=True)
class End:
    """The job is over, on every host."""

    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Record:
    """Something happened that people and programs want to know: a line of the job's event log."""

    kind: str
    text: str
    fields: Mapping[str, Json] = field(default_factory=dict)


Order = Start | Stop | Kill | Reassign | Membership | OpenMaster | Reset | Die
Action = Start | Stop | Kill | Reassign | Regroup | OpenMaster | Reset | Release | End | Record


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """A worker as its agent knows it, told to a coordinator that takes over."""

    worker: str
    local_rank: int
    assignment: Assignment
    succeeded: bool
    uses_multiworld: bool
    worlds: tuple[str, ...]
    restart_ages_s: tuple[float, ...]
    """How long ago each of its starts after the first was."""
    stopping: bool = False
    """It was ordered to end."""
    ended: bool = False
    """It has ended, well or not."""


class Master(NamedTuple):
    """The c10d store of a generation, and where it is served."""

    generation: int
    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """What runs on a host."""

    workers: tuple[WorkerReport, ...] = ()
    master: Master | None = None
    ages_s: Mapping[str, float] = field(default_factory=dict)
    """How long ago each worker was started."""


@message("greeted")
@dataclass(frozen=True, kw_only=True)
class Greeted:
    """A worker uses multiworld."""

    worker: str


@message("world")
@dataclass(frozen=True, kw_only=True)
class InWorld:
    """A worker is a member of a world from now on, or, if it has ``left``, no longer."""

    worker: str
    world: str
    left: bool


@message("exited")
@dataclass(frozen=True, kw_only=True)
class Exited:
    """A worker has ended. ``failure``: None if it did so well, or by a quiet stop. ``clock_us``: this host's clock."""

    worker: str
    returncode: int
    failure: WorkerFailure | None
    ordered: bool
    clock_us: int


@message("master")
@dataclass(frozen=True, kw_only=True)
class MasterOpened:
    """The c10d store of a generation is served there."""

    generation: int
    address: str
    port: int


@message("runs")
@dataclass(frozen=True, kw_only=True)
class Runs:
    """All workers that run on this host, or are about to. Told again and again, so that nothing is lost for ever."""

    workers: tuple[str, ...]
    pids: Mapping[str, int] = field(default_factory=dict)
    """Of those that have a process, by worker."""


@message("interrupted")
@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """Somebody wants the job to end. ``why``: if by no signal."""

    signum: int
    why: str = ""


@message("roster wanted")
@dataclass(frozen=True, kw_only=True)
class RosterWanted:
    """This agent has lost track of what changed in the roster: it must be told whole."""


@message("training told")
@dataclass(frozen=True, kw_only=True)
class TrainingTold:
    """A worker of this host tells how its training stands, or that its membership has changed.

    ``is_repeated``: the coordinator before was told so.
    """

    news: TrainingNews
    is_repeated: bool = False


@message("remote told")
@dataclass(frozen=True, kw_only=True)
class RemoteTold:
    """A worker of this host tells how its nodes of remote tensors stand."""

    news: RemoteNodes


Report = Greeted | InWorld | Exited | MasterOpened | Runs | Interrupted | RosterWanted | TrainingTold | RemoteTold
