"""What a controller must know of its deployment before anything runs, and how that crosses to a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...wire.messages import Json, from_json, to_json
from ...world.liveness import DEFAULT_LEASE_S
from ..graces import STOP_S
from ..graph import Batch, Graph, Stage
from .scaling import ScalingPolicy

REPLICA_PROGRAM = "multiworld.serving.replica_program:main"
GATEWAY_PROGRAM = "multiworld.serving.gateway_program:main"
WORK = "multiworld.serving:work"  # stands for what only replicas know


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """Of a stage only what the controller decides by. ``canary``: False for none; what one is only replicas know."""

    name: str
    inputs: tuple[str, ...] | None
    replicas: int
    min_replicas: int | None
    max_replicas: int | None
    batch: Batch | bool | None
    hosts: tuple[str, ...]
    limit_s: float | None
    canary: bool | None

    def stage(self) -> Stage:
        """Raises ValueError or TypeError."""
        return Stage(work=WORK, **vars(self))


@dataclass(frozen=True, kw_only=True)
class _Settings:
    name: str
    job: str
    token: str
    store: str = "tcp://127.0.0.1:0"
    address: tuple[str, int] = ("127.0.0.1", 0)
    lease_s: float = DEFAULT_LEASE_S
    gateways: int = 0
    hosts: int = 1
    threads: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    replica_program: str = REPLICA_PROGRAM
    gateway_program: str = GATEWAY_PROGRAM
    gateway: Mapping[str, Json] = field(default_factory=dict)
    scaling: ScalingPolicy | None = None
    backend: str = "auto"


@dataclass(frozen=True, kw_only=True)
class SpecRecord(_Settings):
    """What a controller's process is given. ``grace_s``: how long the members may take to end."""

    folder: str
    stages: tuple[StageRecord, ...]
    grace_s: float = STOP_S


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec(_Settings):
    """``folder``: where the state, the weights and what members read lie; only this user may read it.

    ``store``: the URL at which the store for forming worlds is served; ``address``: where hosts and commands dial. Port
    0 picks a free one; a controller that is to be started again needs both fixed. ``gateways``: how many are started on
    the hosts, with ``gateway`` as further arguments; ``hosts``: how many are waited for at first. ``threads`` and
    ``env``: of each member's process. ``scaling``: how the number of replicas follows the load; None: it does not.
    ``backend``: of the requests' worlds.
    """

    folder: Path
    graph: Graph

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads. Of the stages only what the controller decides by is kept."""
        stages = tuple(
            StageRecord(**_fields_of(StageRecord, stage) | {"canary": False if stage.canary is False else None})
            for stage in self.graph
        )
        return to_json(SpecRecord(**_fields_of(_Settings, self), folder=str(self.folder), stages=stages))

    @classmethod
    def from_json(cls, fields: object) -> DeploymentSpec:
        """Raises MessageError or ValueError for what ``to_json`` did not make."""
        return cls.of(from_json(SpecRecord, fields))

    @classmethod
    def of(cls, record: SpecRecord) -> DeploymentSpec:
        """Raises ValueError for a graph that is none."""
        graph = Graph([stage.stage() for stage in record.stages])
        return cls(**_fields_of(_Settings, record), folder=Path(record.folder), graph=graph)


def _fields_of(cls: type[StageRecord | _Settings], given: object) -> dict[str, Any]:
    return {each.name: getattr(given, each.name) for each in fields(cls)}
