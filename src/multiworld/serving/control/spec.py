"""What a controller must know of its deployment before anything runs, and how that crosses to a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...world.liveness import DEFAULT_LEASE_S
from ..graph import Batch, Graph, Stage
from .scaling import ScalingPolicy

__all__ = ["DeploymentSpec"]

REPLICA_PROGRAM = "multiworld.serving.replica_program:main"
GATEWAY_PROGRAM = "multiworld.serving.gateway_program:main"
WORK = "multiworld.serving:work"  # stands for what only replicas know


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """``folder``: where the state, the weights and what members read lie; only this user may read it.

    ``store``: the URL at which the store for forming worlds is served; ``address``: where hosts and commands dial. Port
    0 picks a free one; a controller that is to be started again needs both fixed. ``gateways``: how many are started on
    the hosts, with ``gateway`` as further arguments; ``hosts``: how many are waited for at first. ``threads`` and
    ``env``: of each member's process. ``scaling``: how the number of replicas follows the load; None: it does not.
    ``backend``: of the requests' worlds.
    """

    name: str
    job: str
    token: str
    folder: Path
    graph: Graph
    store: str = "tcp://127.0.0.1:0"
    address: tuple[str, int] = ("127.0.0.1", 0)
    lease_s: float = DEFAULT_LEASE_S
    gateways: int = 0
    hosts: int = 1
    threads: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    replica_program: str = REPLICA_PROGRAM
    gateway_program: str = GATEWAY_PROGRAM
    gateway: Mapping[str, Any] = field(default_factory=dict)
    scaling: ScalingPolicy | None = None
    backend: str = "auto"

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads. Of the stages only what the controller decides by is kept."""
        plain = ("name", "job", "token", "store", "lease_s", "gateways", "hosts", "threads", "backend")
        fields: dict[str, Any] = {name: getattr(self, name) for name in plain}
        return fields | {
            "folder": str(self.folder),
            "address": list(self.address),
            "env": dict(self.env),
            "gateway": dict(self.gateway),
            "replica_program": self.replica_program,
            "gateway_program": self.gateway_program,
            "scaling": None if self.scaling is None else asdict(self.scaling),
            "stages": [_stage_fields(stage) for stage in self.graph],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DeploymentSpec:
        """Raises ValueError, TypeError or KeyError for what ``to_json`` did not make."""
        given = dict(fields)
        stages = [Stage(work=WORK, **_stage_arguments(stage)) for stage in given.pop("stages")]
        scaling = given.pop("scaling")
        host, port = given.pop("address")
        return cls(
            graph=Graph(stages),
            folder=Path(given.pop("folder")),
            address=(host, port),
            scaling=None if scaling is None else ScalingPolicy(**scaling),
            **given,
        )


def _stage_fields(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "inputs": stage.inputs,
        "replicas": stage.replicas,
        "min_replicas": stage.min_replicas,
        "max_replicas": stage.max_replicas,
        "batch": asdict(stage.batch) if stage.batch else stage.batch,
        "hosts": stage.hosts,
        "limit_s": stage.limit_s,
        "canary": False if stage.canary is False else None,  # what an example looks like only replicas know
    }


def _stage_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    batch = fields["batch"]
    return {**fields, "batch": Batch(**batch) if batch else batch}
