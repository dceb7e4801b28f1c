"""What a worker process tells its agent about its worlds, and what an agent believes of it. Pure."""

from __future__ import annotations

from typing import Any

from ..errors import ProtocolError, WorldBrokenError
from ..events import Event, WorldBroken, WorldFormed, WorldLeft

__all__ = ["PROGRESS", "check_news", "left_news", "news_of"]

MAX_TEXT = 200
LIMIT = 2**62
PROGRESS: dict[str, Any] = {"news": "progress"}
_WORLD: dict[str, type] = {"job": str, "name": str, "generation": int}
_FIELDS: dict[str, dict[str, type]] = {
    "progress": {},
    "formed": {**_WORLD, "rank": int, "world_size": int},
    "broken": {**_WORLD, "rank": int, "cause": str, "detail": str},
    "left": _WORLD,
}


def news_of(event: Event, job: str) -> dict[str, Any] | None:
    """Return what the agent wants to know of an event, if anything.

    ``rank`` is this process's own when a world was formed, and the lost one (-1: none) when it broke.
    """
    world = {"job": job, "name": event.world, "generation": event.generation}
    if isinstance(event, WorldFormed):
        return {"news": "formed", **world, "rank": event.rank, "world_size": event.world_size}
    if isinstance(event, WorldBroken):
        error = event.error
        rank, detail = (error.rank, error.cause) if isinstance(error, WorldBrokenError) else (-1, str(error))
        return {"news": "broken", **world, "rank": rank, "cause": type(error).__name__, "detail": detail[:MAX_TEXT]}
    if isinstance(event, WorldLeft):
        return left_news(job, event.world, event.generation)
    return None


def left_news(job: str, name: str, generation: int) -> dict[str, Any]:
    """Return the news that this process is no longer in a world, and did not see it break."""
    return {"news": "left", "job": job, "name": name, "generation": generation}


def check_news(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that count; raises ProtocolError for news that no worker of ours would tell."""
    kind = fields.get("news")
    expected = _FIELDS.get(kind) if isinstance(kind, str) else None
    if expected is None:
        raise ProtocolError(f"unknown news from a worker: {str(kind)[:MAX_TEXT]!r}")
    news: dict[str, Any] = {"news": kind}
    for name, kind_of_value in expected.items():
        value = fields.get(name)
        if type(value) is not kind_of_value:
            raise ProtocolError(f"{kind!r} news from a worker, whose {name} is a {type(value).__name__}")
        if not _is_in_range(value):
            raise ProtocolError(f"{kind!r} news from a worker, whose {name} is out of range")
        news[name] = value
    return news


def _is_in_range(value: object) -> bool:
    return len(value) <= MAX_TEXT if isinstance(value, str) else isinstance(value, int) and -1 <= value < LIMIT
