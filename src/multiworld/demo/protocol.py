"""What the main job and its worker processes tell each other: one JSON object a line, over the worker's pipes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["READY", "Notice", "Role"]

READY = "Ready"


@dataclass(frozen=True, kw_only=True)
class Role:
    """The order that makes a warm worker one process of the rhombus; the token in it never shows in a command line."""

    name: str
    number: int
    store: str
    backend: str
    token: str
    lease_s: float
    weights: str

    def to_line(self) -> bytes:
        """Return the line that ``from_line`` reads."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Role:
        """Read what ``to_line`` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What a worker tells: that it is ready, or an event of one of its worlds.

    ``kind`` is ``READY`` or the name of the event's class, ``error`` the class of the error that broke the world, and
    ``at`` the time by ``time.monotonic()``, which all processes of one machine share.
    """

    kind: str
    at: float
    world: str = ""
    generation: int = 0
    error: str = ""
    text: str = ""

    def to_line(self) -> str:
        """Return the line, without its end, that ``from_line`` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: bytes) -> Notice:
        """Read what ``to_line`` wrote."""
        return cls(**json.loads(line))
