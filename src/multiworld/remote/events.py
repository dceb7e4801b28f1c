"""What happened to nodes, as frozen records: for programs. People read the log instead."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["NodeEvent", "NodeJoined", "NodeLost"]


@dataclass(frozen=True, kw_only=True)
class NodeEvent:
    """Base of the events of nodes. ``generation`` counts how often the node was there.

    ``at``: Unix time in seconds, for people and for merging logs, never for decisions.
    """

    node: int
    generation: int
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class NodeJoined(NodeEvent):
    """A node can be used, for the first time or again. ``pid``: on its ``host``."""

    pid: int
    host: str


@dataclass(frozen=True, kw_only=True)
class NodeLost(NodeEvent):
    """A node is gone, and its tensors with it (``reason``).

    ``first_lost``: the oldest operation that it had not confirmed, with its line; empty if there was none.
    """

    reason: str
    first_lost: str
