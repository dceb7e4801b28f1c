"""What a worker process tells its agent about its worlds, and what an agent believes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import WorldBrokenError
from ...events import Event, WorldBroken, WorldFormed, WorldLeft
from ...wire.messages import MessageSet, message

MAX_TEXT = 200
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


News = Progressed | Formed | Broke | Left
WORKER_NEWS: MessageSet[News] = MessageSet("news of a worker", News, tag="news")


def news_of(event: Event, job: str) -> News | None:
    """Return what the agent wants to know of an event, if anything."""
    name, generation = event.world, event.generation
    if isinstance(event, WorldFormed):
        return Formed(job=job, name=name, generation=generation, rank=event.rank, world_size=event.world_size)
    if isinstance(event, WorldBroken):
        error = event.error
        rank, detail = (error.rank, error.cause) if isinstance(error, WorldBrokenError) else (-1, str(error))
        cause = type(error).__name__
        return Broke(job=job, name=name, generation=generation, rank=rank, cause=cause, detail=detail[:MAX_TEXT])
    if isinstance(event, WorldLeft):
        return Left(job=job, name=name, generation=generation)
    return None
