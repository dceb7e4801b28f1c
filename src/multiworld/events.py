"""What happened, as frozen records: for tests, metrics, displays and autoscalers. People read the log instead."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Event", "PeerLost", "PeerSuspected", "WorldBroken", "WorldFormed", "WorldLeft"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events. ``at`` is Unix time in seconds, for people and for merging logs, never for decisions."""

    world: str
    generation: int
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class WorldFormed(Event):
    """All members are connected; operations may start. ``took_s`` is the time that this process spent in ``join``."""

    rank: int
    world_size: int
    backend: str
    took_s: float


@dataclass(frozen=True, kw_only=True)
class PeerSuspected(Event):
    """A member is silent; it is being examined. Reversible: nothing is broken yet. ``silent_s`` in seconds."""

    rank: int
    silent_s: float


@dataclass(frozen=True, kw_only=True)
class PeerLost(Event):
    """A member is gone for this generation. ``cause`` is the name of the error class (``"PeerDiedError"`` …)."""

    rank: int
    cause: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class WorldBroken(Event):
    """The world broke: every pending operation has raised ``error``."""

    error: Exception


@dataclass(frozen=True, kw_only=True)
class WorldLeft(Event):
    """This process left the world on purpose."""
