"""What a worker process tells its agent: its worlds, its training, its nodes; what an agent believes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import WorldBrokenError
from ...events import Event, WorldBroken, WorldFormed, WorldLeft
from ...wire.messages import MessageSet, message, sparse
from ...wire.shortened import shortened
from .pipelines import PipelineRanks, sizes_of
from .remote_nodes import RemoteNodes

MAX_TEXT = 200
MAX_PHASES, MAX_PHASE = 10, 40
MAX_MEMBERS = 4096  # of all pipelines together
LIMIT = 2**62


@message("progress")
@dataclass(frozen=True, kw_only=True)
class Progressed:
    """The program goes on."""


@dataclass(frozen=True, kw_only=True)
class _OfWorld:
    """Small, as an agent keeps it: raises ValueError for what is not."""

    job: str
    name: str
    generation: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if len(value) > MAX_TEXT if isinstance(value, str) else not -1 <= value < LIMIT:
                raise ValueError(f"{name} is out of range")


@message("formed")
@dataclass(frozen=True, kw_only=True)
class Formed(_OfWorld):
    """This process is a member of a world from now on, as ``rank``."""

    rank: int
    world_size: int


@message("broken")
@dataclass(frozen=True, kw_only=True)
class Broke(_OfWorld):
    """A world broke. ``rank``: the lost one; -1: none."""

    rank: int
    cause: str
    detail: str


@message("left")
@dataclass(frozen=True, kw_only=True)
class Left(_OfWorld):
    """This process is no longer in a world, and did not see it break."""


@dataclass(frozen=True, kw_only=True)
class _OfTraining:
    """Small, as agents and the coordinator keep it. ``name``: of the training. Raises ValueError for what is not.

    ``generation``: of the training's membership; ``step``: counted from 0; ``replicas``: how many go on.
    """

    name: str
    generation: int
    step: int
    replicas: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                is_small = len(value) <= MAX_TEXT
            elif isinstance(value, Mapping):
                is_small = len(value) <= MAX_PHASES and all(len(key) <= MAX_PHASE for key in value)
            else:
                is_small = value is None or -LIMIT < value < LIMIT
            if not is_small:
                raise ValueError(f"{name} is out of range")


@message("trained")
@sparse
@dataclass(frozen=True, kw_only=True)
class Trained(_OfTraining):
    """How a training stands after ``step``; later news of that training replaces it, so some may be lost.

    ``value``: what the program recorded as ``value_name``, its loss; None: nothing, or ``is_finite`` is False.
    ``ended``: no further step comes; ``reason``: why, if not because all are done.
    """

    total: int | None = None
    value_name: str = ""
    value: float | None = None
    is_finite: bool = True
    samples_per_s: float | None = None
    goodput: float = 0.0
    left_s: float | None = None
    ended: bool = False
    reason: str = ""


@message("training_fault")
@sparse
@dataclass(frozen=True, kw_only=True)
class TrainingFault(_OfTraining):
    """The membership of a training has changed: told when it is known, and again when the next step was committed.

    All members give the same ``key`` to the same change. ``change``: ``failure``, ``join`` or ``leave``. ``took_s``:
    from the first sign to the next committed step, None while there is none; ``phases``: seconds of each.
    """

    key: str
    change: str
    text: str
    took_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    redone: int = 0


@message("training_pipelines")
@sparse
@dataclass(frozen=True, kw_only=True)
class TrainingPipelines(_OfTraining):
    """The pipelines of a training that has some, from ``step`` on; those of a later generation replace them.

    ``policy``: how they follow from those before. ``iteration_s``: what a step takes as predicted; 0: not predicted.
    """

    num_layers: int
    pipelines: tuple[PipelineRanks, ...]
    policy: str = ""
    iteration_s: float = 0.0

    def __post_init__(self) -> None:
        scalars = (self.generation, self.step, self.replicas, self.num_layers, self.iteration_s)
        is_small = all(-LIMIT < each < LIMIT for each in scalars) and len(self.name) + len(self.policy) <= 2 * MAX_TEXT
        if not is_small or sum(sizes_of(self.pipelines)) > MAX_MEMBERS:
            raise ValueError("the pipelines of a training are out of range")


TrainingNews = Trained | TrainingFault | TrainingPipelines
News = Progressed | Formed | Broke | Left | TrainingNews | RemoteNodes
WORKER_NEWS: MessageSet[News] = MessageSet("news of a worker", News, tag="news")


def news_of(event: Event, job: str) -> News | None:
    """Return what the agent wants to know of an event, if anything."""
    name, generation = event.world, event.generation
    if isinstance(event, WorldFormed):
        return Formed(job=job, name=name, generation=generation, rank=event.rank, world_size=event.world_size)
    if isinstance(event, WorldBroken):
        error = event.error
        rank, detail = (error.rank, error.cause) if isinstance(error, WorldBrokenError) else (-1, str(error))
        cause, detail = type(error).__name__, shortened(detail, MAX_TEXT)
        return Broke(job=job, name=name, generation=generation, rank=rank, cause=cause, detail=detail)
    if isinstance(event, WorldLeft):
        return Left(job=job, name=name, generation=generation)
    return None
