"""What a controller writes down for the one that is started after it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...member.orders import Tune
from .rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class SavedMember:
    """``keep``: its host starts it again by itself. ``retiring``: why it is to go; empty: it is not."""

    id: str
    stage: str
    version: int
    host: str
    pid: int | None
    keep: bool
    was_ready: bool
    retiring: str


@dataclass(frozen=True, kw_only=True)
class SavedStage:
    """``weights``: the file of each version's weights."""

    desired: int
    version: int
    last_version: int
    weights: Mapping[str, str]
    rollout: Rollout | None
    tuning: Tune | None = field(metadata={"none": {}})


@dataclass(frozen=True, kw_only=True)
class SavedFleet:
    """``numbers``: the highest of each stage's members.

    ``begun``: all had come up once; ``stopping``: the deployment was to end.
    """

    numbers: Mapping[str, int]
    epoch: int
    ready: bool
    stages: Mapping[str, SavedStage]
    members: tuple[SavedMember, ...]
    begun: bool = False
    stopping: bool = False
