"""How a deployment stands, for commands, pages and people; ``to_json`` of it is what they are shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..member.failure import Failure
from ..member.orders import Tune
from ..member.reports import GatewayStatistics, ReplicaStatistics
from .fleet.members import Member
from .fleet.state import FleetState


@dataclass(frozen=True, kw_only=True)
class StageStatus:
    """``open``: replicas that take requests. ``backs_off_s``: until the next one is started, as they die young."""

    inputs: tuple[str, ...]
    upstream: tuple[str, ...]
    downstream: tuple[str, ...] = ()
    desired: int
    open: int
    min_replicas: int
    max_replicas: int | None
    version: int
    updating_to: int | None
    tuning: Tune | None = field(default=None, metadata={"none": {}})
    waits_for: str
    backs_off_s: float
    last_error: str = ""


@dataclass(frozen=True, kw_only=True)
class MemberStatus:
    """``open``: whether anybody routes to it. ``awaited``: back, after a restart of the controller."""

    id: str
    stage: str
    state: str
    open: bool
    pid: int | None
    host: str
    address: str
    version: int
    age_s: float
    awaited: bool
    retiring: str
    queue: int = 0
    cpu: float | None = None
    rss_bytes: int | None = None
    pss_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaStatus(MemberStatus):
    """``stats``: None before it has told any. ``failure``: what failed last."""

    stats: ReplicaStatistics | None = field(default=None, metadata={"none": {}})
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class GatewayStatus(MemberStatus):
    """``stats``: None before it has told any. ``failure``: what failed last."""

    stats: GatewayStatistics | None = field(default=None, metadata={"none": {}})
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class EdgeStatus:
    upstream: str = field(metadata={"json": "from"})
    downstream: str = field(metadata={"json": "to"})
    state: str
    attempts: int = 0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class HostStatus:
    name: str
    address: str
    capacity: int
    live: bool


@dataclass(frozen=True, kw_only=True)
class ControllerStatus:
    """``store`` and ``address``: where members and commands reach the controller.

    ``missing``: which stages take no requests, and why; ``unready_s``: for how long that has been so.
    """

    name: str = ""
    store: str = ""
    address: tuple[str, int] = ("", 0)
    ready: bool
    missing: str
    unready_s: float | None = None
    epoch: int
    resuming: bool
    stopping: bool
    stages: Mapping[str, StageStatus]
    replicas: tuple[ReplicaStatus, ...]
    gateways: tuple[GatewayStatus, ...]
    edges: tuple[EdgeStatus, ...]
    hosts: tuple[HostStatus, ...]
    num_events: int = 0

    @property
    def members(self) -> tuple[ReplicaStatus | GatewayStatus, ...]:
        return (*self.replicas, *self.gateways)


def describe(state: FleetState, now: float) -> ControllerStatus:
    """Return stages, replicas, gateways, edges and hosts, and whether all stages take requests."""
    missing = state.missing()
    members = state.members.values()
    return ControllerStatus(
        ready=not missing,
        missing=missing,
        unready_s=None if state.unready_since is None else now - state.unready_since,
        epoch=state.wiring.epoch,
        resuming=state.resuming,
        stopping=state.stopping,
        stages={name: _stage(state, name, now) for name in state.graph.order},
        replicas=tuple(_replica(state, member, now) for member in members if not member.is_gateway),
        gateways=tuple(_gateway(state, member, now) for member in members if member.is_gateway),
        edges=tuple(
            EdgeStatus(
                upstream=edge.upstream,
                downstream=edge.downstream,
                state=edge.state.value,
                attempts=edge.attempts,
                error=edge.error,
            )
            for edge in state.wiring.edges.values()
        ),
        hosts=tuple(
            HostStatus(name=host.name, address=host.address, capacity=host.capacity, live=host.live)
            for host in state.hosts.values()
        ),
    )


def _stage(state: FleetState, name: str, now: float) -> StageStatus:
    plan = state.plans[name]
    stage = state.graph.stages[name]
    return StageStatus(
        inputs=tuple(state.graph.inputs(name)),
        upstream=tuple(state.graph.upstream(name)),
        downstream=tuple(state.graph.downstream(name)),
        desired=plan.desired,
        open=state.num_open(name),
        min_replicas=stage.fewest,
        max_replicas=stage.most,
        version=plan.version,
        updating_to=None if plan.rollout is None else plan.rollout.version,
        tuning=plan.tuning,
        waits_for=plan.waits_for,
        backs_off_s=max(0.0, plan.crash.not_before - now),
        last_error=plan.last_error,
    )


def _replica(state: FleetState, member: Member, now: float) -> ReplicaStatus:
    stats = member.stats if isinstance(member.stats, ReplicaStatistics) else None
    return ReplicaStatus(**vars(_member(state, member, now)), stats=stats, failure=member.failure)


def _gateway(state: FleetState, member: Member, now: float) -> GatewayStatus:
    stats = member.stats if isinstance(member.stats, GatewayStatistics) else None
    return GatewayStatus(**vars(_member(state, member, now)), stats=stats, failure=member.failure)


def _member(state: FleetState, member: Member, now: float) -> MemberStatus:
    stats = member.stats
    return MemberStatus(
        id=member.id,
        stage=member.stage,
        state=member.state.value,
        open=state.wiring.is_open(member.id),
        pid=member.pid,
        host=member.host,
        address=member.address,
        version=member.version,
        age_s=now - member.born,
        awaited=member.awaited,
        retiring=member.retiring,
        queue=member.work.queue,
        cpu=None if stats is None else stats.cpu,
        rss_bytes=None if stats is None else stats.rss_bytes,
        pss_bytes=None if stats is None else stats.pss_bytes,
    )
