"""What members report to the controller: how its orders went, what broke, and each second what they have done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from ...wire.messages import Json, MessageSet, message
from ..graph import GATEWAY
from .failure import Failure
from .orders import EdgeEnd


@dataclass(frozen=True, kw_only=True)
class MemberEdge:
    """An edge that a member has. ``end``: which end of it the member is."""

    peer: str
    end: EdgeEnd = field(metadata={"json": "as"})


@message("hello")
@dataclass(frozen=True, kw_only=True)
class Hello:
    """Who a member is and how it stands: its first word to each controller. ``version``: of its weights."""

    pid: int
    member: str = ""
    stage: str = ""
    host: str = ""
    state: str = "starting"
    version: int = 0
    edges: tuple[MemberEdge, ...] = ()


@message("loaded")
@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A replica has made its work. ``asked``: which replica had no canary; ``canary``: whose canary it has passed."""

    version: int = 1
    took_s: float = 0.0
    source: str = field(default="", metadata={"json": "from"})
    asked: str = ""
    canary: str = ""


@message("load_failed")
@dataclass(frozen=True, kw_only=True)
class LoadFailure:
    """A replica could not make its work.

    ``hand_over_failed``: the weights did not come from ``donor``; else they did, and from elsewhere they would be
    the same.
    """

    donor: str | None = None
    error: str = ""
    traceback: str = ""
    hand_over_failed: bool = False


@message("canary_missed")
@dataclass(frozen=True, kw_only=True)
class CanaryMissed:
    """The member that was to say what a new replica must answer is gone."""

    giver: str
    error: str = ""


@message("connected")
@dataclass(frozen=True, kw_only=True)
class Connected:
    """An edge is formed, as far as this end can tell."""

    peer: str
    end: EdgeEnd = field(metadata={"json": "as"})


@message("connect_failed")
@dataclass(frozen=True, kw_only=True)
class ConnectFailed:
    """An edge could not be formed."""

    peer: str
    end: EdgeEnd = field(metadata={"json": "as"})
    error: str = ""


@message("edge_broken")
@dataclass(frozen=True, kw_only=True)
class EdgeFailure:
    """An edge broke. ``error``: the class of the error; ``text``: what it says."""

    peer: str
    end: EdgeEnd = field(metadata={"json": "as"})
    error: str = ""
    text: str = ""


@message("drained")
@dataclass(frozen=True, kw_only=True)
class Drained:
    """Nothing is left of what a member had to do."""


@message("where")
@dataclass(frozen=True, kw_only=True)
class AskWhere:
    """A gateway asks where these requests are, whose ids are in hexadecimal digits."""

    ids: tuple[str, ...]


@message("at")
@dataclass(frozen=True, kw_only=True)
class At:
    """Where those requests are that a replica knows of, for the gateway that asked: see ``Whereabouts``."""

    asker: str
    at: Mapping[str, tuple[str, bool]]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a process takes of its host.

    ``cpu_s``: since its start; ``cpu``: processors that were busy with it of late. ``pss_bytes``: pages that several
    processes have are shared out. None where the kernel does not tell.
    """

    cpu_s: float = 0.0
    cpu: float | None = None
    rss_bytes: int | None = None
    pss_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaCounts:
    """What a replica has done since its start, and what is there now. Seconds, bytes, and numbers of requests.

    ``executing_s``: for how long it has executed what it executes; ``alone``: executed without others in the batch;
    ``service_s``: what one request takes.
    """

    queue: int = 0
    executing: int = 0
    executing_s: float = 0.0
    in_flight: int = 0
    arrived: int = 0
    done: int = 0
    failed: int = 0
    alone: int = 0
    calls: int = 0
    busy_s: float = 0.0
    service_s: float | None = None
    held_bytes: int = 0
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class GatewayCounts:
    """What a gateway has done since its start, and what is there now. Seconds, bytes, and numbers of requests."""

    open: int = 0
    open_bytes: int = 0
    waiting: int = 0
    answered: int = 0
    failed: int = 0
    errors: int = 0
    refused: int = 0
    repeated: int = 0
    retried: int = 0
    replayed: int = 0
    answers_replayed: int = 0
    latency_sum_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReplicaStatistics(Usage, ReplicaCounts):
    """What a replica does, and what its process takes for it."""


@dataclass(frozen=True, kw_only=True)
class GatewayStatistics(Usage, GatewayCounts):
    """What a gateway does, and what its process takes for it."""


@message("stats")
@dataclass(frozen=True, kw_only=True)
class ReplicaNews(ReplicaStatistics):
    """What a replica tells each second. ``failure``: what failed last."""

    failure: Failure | None = None

    @property
    def statistics(self) -> ReplicaStatistics:
        return ReplicaStatistics(**_without(vars(self), "failure"))


@message("stats")
@dataclass(frozen=True, kw_only=True)
class GatewayNews(GatewayStatistics):
    """What a gateway tells each second. ``metrics``: for its operator, as ``observe.prometheus`` packs them."""

    failure: Failure | None = None
    metrics: tuple[Json, ...] | None = None

    @property
    def statistics(self) -> GatewayStatistics:
        return GatewayStatistics(**_without(vars(self), "failure", "metrics"))


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


Common: TypeAlias = Hello | Loaded | Connected | ConnectFailed | EdgeFailure | Drained
ReplicaReport: TypeAlias = Common | LoadFailure | CanaryMissed | At | ReplicaNews
GatewayReport: TypeAlias = Common | AskWhere | GatewayNews
MemberReport: TypeAlias = ReplicaReport | GatewayReport
REPLICA_REPORTS: MessageSet[ReplicaReport] = MessageSet("reports of replicas", ReplicaReport, tag="event")
GATEWAY_REPORTS: MessageSet[GatewayReport] = MessageSet("reports of gateways", GatewayReport, tag="event")


def reports_of(member: str) -> MessageSet[MemberReport]:
    """Return what a member of that name may say."""
    is_gateway = member.rpartition("-")[0] == GATEWAY
    return cast("MessageSet[MemberReport]", GATEWAY_REPORTS if is_gateway else REPLICA_REPORTS)
