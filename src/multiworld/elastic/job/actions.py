"""What the coordinator's decisions order, and what agents report to it. Pure values, as they cross the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .assignment import Assignment

__all__ = [
    "Action",
    "End",
    "Kill",
    "OpenMaster",
    "Outcome",
    "Reassign",
    "Record",
    "Release",
    "Reset",
    "Start",
    "Stop",
    "WorkerReport",
]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start a worker process, to be known as ``worker`` from then on."""

    agent: str
    worker: str
    assignment: Assignment


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Send a signal to workers, and SIGKILL to those that are left after ``grace_s``."""

    agent: str
    workers: tuple[str, ...]
    signum: int
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Kill a worker with SIGKILL, as a fault would, so that it is taken for one."""

    agent: str
    worker: str


@dataclass(frozen=True, kw_only=True)
class Reassign:
    """A running worker has another place from now on: tell it."""

    agent: str
    worker: str
    assignment: Assignment


@dataclass(frozen=True, kw_only=True)
class OpenMaster:
    """Serve a fresh c10d store for a generation, where ``MASTER_ADDR`` and ``MASTER_PORT`` will point."""

    agent: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Reset:
    """This agent was given up: it must end its workers and come again as a new host."""

    agent: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """This agent has no part in the job any more, and ends well."""

    agent: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the job ended: 0 if well, what failed, and one line for people. ``signum``: somebody ended it so."""

    status: int
    text: str
    failures: tuple[dict[str, Any], ...] = ()
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
    fields: dict[str, Any] = field(default_factory=dict)


Action = Start | Stop | Kill | Reassign | OpenMaster | Reset | Release | End | Record


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
