"""What a worker process tells its agent about its worlds, and what an agent believes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ..errors import ProtocolError, WorldBrokenError
from ..events import Event, WorldBroken, WorldFormed, WorldLeft

__all__ = ["Broke", "Formed", "Left", "News", "Progressed", "news_of", "pack_news", "unpack_news"]

MAX_TEXT = 200
LIMIT = 2**62


@dataclass(frozen=True, kw_only=True)
class Progressed:
    """The program goes on."""


@dataclass(frozen=True, kw_only=True)
class Formed:
    """This process is a member of a world from now on, as ``rank``."""

    job: str
    name: str
    generation: int
    rank: int
    world_size: int


@dataclass(frozen=True, kw_only=True)
class Broke:
    """A world broke. ``rank``: the lost one; -1: none."""

    job: str
    name: str
    generation: int
    rank: int
    cause: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Left:
    """This process is no longer in a world, and did not see it break."""

    job: str
    name: str
    generation: int


News = Progressed | Formed | Broke | Left
_KINDS: dict[str, type[News]] = {"progress": Progressed, "formed": Formed, "broken": Broke, "left": Left}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


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


def pack_news(news: News) -> dict[str, object]:
    """Return what ``unpack_news`` takes, ready for JSON."""
    return {"news": _NAMES[type(news)], **vars(news)}


def unpack_news(told: Mapping[str, object]) -> News:
    """Raises ProtocolError for news that no worker of ours would tell."""
    kind = told.get("news")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ProtocolError(f"unknown news from a worker: {str(kind)[:MAX_TEXT]!r}")
    values: dict[str, object] = {}
    for field in fields(cls):
        value = told.get(field.name)
        if type(value).__name__ != field.type:  # annotations are texts here
            raise ProtocolError(f"{kind!r} news from a worker, whose {field.name} is a {type(value).__name__}")
        if not _is_in_range(value):
            raise ProtocolError(f"{kind!r} news from a worker, whose {field.name} is out of range")
        values[field.name] = value
    make: type = cls  # mypy knows the fields of each, and not of any
    news: News = make(**values)
    return news


def _is_in_range(value: object) -> bool:
    return len(value) <= MAX_TEXT if isinstance(value, str) else isinstance(value, int) and -1 <= value < LIMIT
