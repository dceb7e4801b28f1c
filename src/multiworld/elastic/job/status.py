"""What is known of a job at one moment, for people and programs: the fields are those of ``/status``. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from .remote import RemoteStatus
from .trainings import TrainingStatus


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """``index`` and ``host`` of its agent are None where it has ended well, and its host has gone."""

    rank: int | None
    agent: str
    local_rank: int
    worker: str
    state: str
    restarts: int
    restarts_left: int = 0
    """How often it may fail yet before the job is given up; grows again where the budget is of a time span."""
    since: float | None = None
    """When it was started, or the coordinator first heard of it: seconds since the epoch. None: it does not run."""
    pid: int | None = None
    worlds: tuple[str, ...]
    uses_multiworld: bool
    index: int | None = None
    host: str | None = None


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """How many hosts have ranks, and how many may."""

    min: int
    max: int
    wanted: int
    active: int


@dataclass(frozen=True, kw_only=True)
class AgentStatus:
    """``index``: its number for people. ``node_rank``: None for one that waits."""

    index: int
    id: str
    hostname: str
    host: str
    port: int
    pid: int
    role: str
    devices: str
    state: str
    coordinates: bool
    node_rank: int | None
    num_workers: int
    worlds: tuple[str, ...]
    restarts: int
    device_indices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WorldStatus:
    """A world and its members, as ranks of the job."""

    name: str
    ranks: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """``coordinator``: the agent's id. ``page``: the page's address, None if the coordinator serves none."""

    job: str
    phase: str
    policy: str
    generation: int
    term: int
    coordinator: str
    page: str | None
    nodes: NodeStatus
    agents: tuple[AgentStatus, ...]
    workers: tuple[WorkerStatus, ...]
    worlds: tuple[WorldStatus, ...]
    restarts: int
    trainings: tuple[TrainingStatus, ...] = ()
    """As their members tell the launcher; empty where none does."""
    remote: RemoteStatus | None = None
    """Nodes of remote tensors, as their master tells the launcher."""
