"""What the launcher tells a worker process: its variables, read in this one place, and its place in the job. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from ...wire.endpoints.handshake import DialerHello
from ...wire.endpoints.token import TOKEN_VARIABLE
from ...wire.messages import message, sparse

AGENT_VARIABLE = "MULTIWORLD_AGENT"
WORKER_VARIABLE = "MULTIWORLD_WORKER"
JOB_VARIABLE = "MULTIWORLD_JOB"
GENERATION_VARIABLE = "MULTIWORLD_GENERATION"
MOST_VARIABLE = "MULTIWORLD_MOST_PROCESSES"
RUN_FOLDER_VARIABLE = "MULTIWORLD_RUN_FOLDER"
MAX_JOB_NAME = 200
MAX_WORKER_NAME = 200
LIMIT = 2**62


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Who launched this process, as its variables say.

    ``agent``: the agent's port on this host, a name in the abstract Unix namespace without its leading NUL.
    ``worker``: what the agent calls this process's place; it means nothing to anybody else. ``generation``: the job's
    when the process was started; the present one is in its ``Place``.
    """

    agent: str
    worker: str
    job: str = "default"
    generation: int = 0
    token: str = ""

    def to_environment(self) -> dict[str, str]:
        """Return the variables that ``launched`` reads; without a token, none says so."""
        return {
            AGENT_VARIABLE: self.agent,
            WORKER_VARIABLE: self.worker,
            JOB_VARIABLE: self.job,
            GENERATION_VARIABLE: str(self.generation),
            **({TOKEN_VARIABLE: self.token} if self.token else {}),
        }


def launched(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Return who launched this process, or None if no agent did. ``environment``: by default this process's."""
    variables: Mapping[str, str] = os.environ if environment is None else environment
    agent, worker = variables.get(AGENT_VARIABLE), variables.get(WORKER_VARIABLE)
    if not agent or not worker:
        return None
    generation = variables.get(GENERATION_VARIABLE, "")
    return Launch(
        agent=agent,
        worker=worker,
        job=job_name(variables.get(JOB_VARIABLE, "")),
        generation=int(generation) if generation.isdecimal() else 0,
        token=token_of_environment(variables),
    )


def token_of_environment(environment: Mapping[str, str] | None = None) -> str:
    """Return the job token that this process was given, launched or not; empty if there is none."""
    variables: Mapping[str, str] = os.environ if environment is None else environment
    return variables.get(TOKEN_VARIABLE, "")


def most_processes(environment: Mapping[str, str] | None = None) -> int:
    """Return how many processes the launcher may start in all, if every host has as many as this one; 0: none did."""
    variables: Mapping[str, str] = os.environ if environment is None else environment
    most = variables.get(MOST_VARIABLE, "")
    return int(most) if most.isdecimal() else 0


def run_folder_of_environment(environment: Mapping[str, str] | None = None) -> str:
    """Return the folder on this host that keeps the files of this run (``--log-dir``); empty if there is none."""
    variables: Mapping[str, str] = os.environ if environment is None else environment
    return variables.get(RUN_FOLDER_VARIABLE, "")


def job_name(run_id: str) -> str:
    """Return the job's name as stores know it, where a name is part of a key: a run id may be any text.

    The name of a name is that name.
    """
    name = quote(run_id, safe=" :;,.@+=~!$&'()*[]{}<>|^%") or "default"
    if len(name) <= MAX_JOB_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: MAX_JOB_NAME - 17]}-{digest}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a worker process stands in its job, until the launcher gives it another place.

    ``store``: the URL of the job's store, empty while there is none. ``generation`` grows with every change of the
    job's membership, and is the same for all workers of one membership. ``restarts`` counts how often this rank was
    started again.
    """

    job: str
    store: str
    rank: int
    world_size: int
    local_rank: int
    generation: int
    restarts: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size < LIMIT:
            raise ValueError(f"rank={self.rank} is out of range for world_size={self.world_size}")
        for name in ("local_rank", "generation", "restarts"):
            if not 0 <= getattr(self, name) < LIMIT:
                raise ValueError(f"{name}={getattr(self, name)} of a place is out of range")

    @property
    def membership(self) -> tuple[int, int, int]:
        """What a change of the membership changes: generation, rank, world_size."""
        return self.generation, self.rank, self.world_size


@message("place")
@dataclass(frozen=True, kw_only=True)
class PlaceTold:
    """The agent tells a worker its place; None: it has none yet."""

    place: Place | None = None


@message("hello")
@sparse
@dataclass(frozen=True, kw_only=True)
class WorkerHello(DialerHello):
    """A worker comes to its agent. ``worker``: what the agent calls it."""

    worker: str

    def __post_init__(self) -> None:
        if not 0 < len(self.worker) <= MAX_WORKER_NAME:
            raise ValueError(f"a worker's name has 1 to {MAX_WORKER_NAME} characters, not {len(self.worker)}")
