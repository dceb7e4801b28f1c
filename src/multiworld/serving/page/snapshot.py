"""Decide what a page shows of a deployment's status: numbers with their rates, and who is where. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..control.fleet.members import parse_member
from ..control.status import ControllerStatus, GatewayStatus, HostStatus, MemberStatus, ReplicaStatus, StageStatus
from ..member.reports import GatewayCounts, ReplicaStatistics
from .failures import LastFailure, Trouble, last_failure, trouble, what_failed
from .series import Point, Rates
from .slots import Slots

TONES = {"draining": "warn", "leaving": "warn", "awaited": "warn", "gone": "bad"}  # of states; others come up
MAX_ERROR = 300  # characters, for each of many replicas
COUNTS = ("arrived", "done", "failed", "busy_s", "calls", "answered", "errors", "refused", "replayed", "retried")


@dataclass(frozen=True, kw_only=True)
class Silence:
    """The controller does not answer. ``since``: Unix time."""

    since: float
    why: str


@dataclass(frozen=True, kw_only=True)
class Condition:
    """How the whole deployment stands. ``tone``: good, warn or bad; ``text``: a sentence without its dot."""

    tone: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the gateways; of latencies, which do not add up, those of the slowest."""

    open: int
    waiting: int
    answered: int
    failed: int
    refused: int
    replayed: int
    retried: int
    rate: float | None
    bad_rate: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


@dataclass(frozen=True, kw_only=True)
class ShownMember:
    """``says``: its state in words; ``tone``: how alarming that is.

    ``memory_mb``: what it does not share, or all of it where that is not known.
    """

    id: str
    state: str
    says: str
    tone: str
    open: bool
    pid: int | None
    host: str
    age_s: int
    cpu: float | None
    memory_mb: int | None


@dataclass(frozen=True, kw_only=True)
class ShownReplica(ShownMember):
    """``replaces``: for whom it has just come. ``batch``: requests in a call; ``utilisation``: from 0 to 1."""

    stage: str
    version: int
    retiring: str
    replaces: str
    queue: int
    executing: int
    in_flight: int
    window: int | None
    done: int
    failed: int
    held_bytes: int
    batch: float | None
    trouble: Trouble | None
    failure: LastFailure | None
    """In short: a traceback only comes with the stage's last failure."""
    rate: float | None
    service_s: float | None
    utilisation: float | None


@dataclass(frozen=True, kw_only=True)
class ShownGateway(ShownMember):
    open_requests: int
    waiting: int
    rate: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


@dataclass(frozen=True, kw_only=True)
class ShownStage:
    """``note``: what keeps it from what it is to be, in a few words."""

    name: str
    inputs: tuple[str, ...]
    desired: int
    open: int
    bounds: tuple[int, int | None]
    rate: float | None
    utilisation: float | None
    service_s: float | None
    batch: float | None
    queue: int
    version: int
    updating_to: int | None
    note: str
    trouble: Trouble | None
    failure: LastFailure | None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Seconds, requests/s; None where nothing is known. ``silent``: since when this is not of now."""

    name: str
    ready: bool
    condition: Condition
    unready_s: float | None
    epoch: int
    resuming: bool
    stopping: bool
    totals: Totals
    trouble: Trouble | None
    failure: LastFailure | None
    stages: tuple[ShownStage, ...]
    replicas: tuple[ShownReplica, ...]
    gateways: tuple[ShownGateway, ...]
    hosts: tuple[HostStatus, ...]
    silent: Silence | None = None


def member_key(member: MemberStatus) -> Hashable:
    """Return what names one process of a member."""
    return member.id, member.pid


def observe(rates: Rates, slots: Slots, status: ControllerStatus, now: float) -> None:
    """Take a status in; ``now``: of a monotonic clock."""
    rates.keep_only(member_key(member) for member in status.members)
    for member in status.members:
        if member.stats is not None:
            counts = {name: float(getattr(member.stats, name, 0)) for name in COUNTS}
            rates.observe(member_key(member), counts, now)
    present: dict[str, list[str]] = {name: [] for name in status.stages}
    for replica in status.replicas:
        present.setdefault(replica.stage, []).append(replica.id)
    slots.arrange(present, {name: stage.desired for name, stage in status.stages.items()}, now)


def snapshot(status: ControllerStatus, rates: Rates, slots: Slots, now: float) -> Shown:
    """Return what is shown of a status that was observed."""
    order = list(status.stages)
    replicas = [_replica(each, rates, slots, now) for each in status.replicas]
    replicas.sort(key=lambda each: (order.index(each.stage), _number(each.id)))
    stages = tuple(
        _stage(
            name,
            stage,
            [each for each in replicas if each.stage == name],
            [each for each in status.replicas if each.stage == name],
            rates,
        )
        for name, stage in status.stages.items()
    )
    overall = trouble(*_recent(status.gateways, rates, "answered", "errors"))
    failure = what_failed(last_failure(status.gateways), [stage.failure for stage in stages]) if overall else None
    return Shown(
        name=status.name,
        ready=status.ready,
        condition=_condition(status, overall),
        unready_s=_rounded(status.unready_s, 1),
        epoch=status.epoch,
        resuming=status.resuming,
        stopping=status.stopping,
        totals=_totals(status.gateways, rates),
        trouble=overall,
        failure=failure,
        stages=stages,
        replicas=tuple(replicas),
        gateways=tuple(_gateway(each, rates) for each in status.gateways),
        hosts=status.hosts,
    )


def _condition(status: ControllerStatus, overall: Trouble | None) -> Condition:
    if status.stopping:
        return Condition(tone="warn", text="the deployment is being stopped")
    if status.missing:
        return Condition(tone="bad", text=f"not ready: {status.missing}")
    if status.resuming:
        return Condition(tone="warn", text="the controller was started again; it waits for the members that ran before")
    if overall is not None:
        return Condition(tone=overall.tone, text=overall.text)
    return Condition(tone="good", text="every stage takes requests")


def point(totals: Totals, at: float) -> Point:
    """Return what the curves show of a snapshot."""
    return Point(
        at=at,
        rate=totals.rate,
        bad_rate=totals.bad_rate,
        open=totals.open,
        p50_s=totals.p50_s,
        p95_s=totals.p95_s,
        p99_s=totals.p99_s,
    )


def _totals(gateways: Sequence[GatewayStatus], rates: Rates) -> Totals:
    known = [gateway for gateway in gateways if gateway.stats is not None]
    stats = [gateway.stats for gateway in known if gateway.stats is not None]
    return Totals(
        open=sum(each.open for each in stats),
        waiting=sum(each.waiting for each in stats),
        answered=sum(each.answered for each in stats),
        failed=sum(each.failed for each in stats),
        refused=sum(each.refused for each in stats),
        replayed=sum(each.replayed for each in stats),
        retried=sum(each.retried for each in stats),
        rate=_sum_rate(known, rates, "answered"),
        bad_rate=_sum_rate(known, rates, "failed", "refused"),
        p50_s=_worst(each.p50_s for each in stats),
        p95_s=_worst(each.p95_s for each in stats),
        p99_s=_worst(each.p99_s for each in stats),
    )


def _worst(values: Iterable[float]) -> float | None:
    return round(max(values, default=0.0), 6) or None


def _sum_rate(members: Sequence[MemberStatus], rates: Rates, *names: str) -> float | None:
    return _total([rates.rate(member_key(each), name) for each in members for name in names])


def _stage(
    name: str, stage: StageStatus, replicas: Sequence[ShownReplica], members: Sequence[ReplicaStatus], rates: Rates
) -> ShownStage:
    serving = [each for each in replicas if each.open]
    trouble_now = trouble(*_recent(members, rates, "done", "failed"))
    return ShownStage(
        name=name,
        inputs=stage.inputs,
        desired=stage.desired,
        open=stage.open,
        bounds=(stage.min_replicas, stage.max_replicas),
        rate=_total([each.rate for each in replicas]),
        utilisation=_mean([each.utilisation for each in serving]),
        service_s=_mean([each.service_s for each in serving]),
        batch=_rounded(_mean([each.batch for each in serving]), 1),
        queue=sum(each.queue for each in replicas),
        version=stage.version,
        updating_to=stage.updating_to,
        note=_note(stage),
        trouble=trouble_now,
        failure=last_failure(members) if trouble_now else None,
    )


def _recent(members: Sequence[MemberStatus], rates: Rates, *names: str) -> list[int]:
    return [sum(rates.recent(member_key(each), name) for each in members) for name in names]


def _note(stage: StageStatus) -> str:
    if stage.backs_off_s > 0:
        return f"its replicas die young; next start in {stage.backs_off_s:.0f} s"
    return stage.waits_for


def _replica(replica: ReplicaStatus, rates: Rates, slots: Slots, now: float) -> ShownReplica:
    stats, key = replica.stats or ReplicaStatistics(), member_key(replica)
    busy = rates.rate(key, "busy_s")
    calls, done, failed = (rates.rate(key, name) for name in ("calls", "done", "failed"))
    replaces = slots.replaced_by(replica.stage, replica.id, now)
    return ShownReplica(
        **vars(_member(replica, replaces)),
        stage=replica.stage,
        version=replica.version,
        retiring=replica.retiring,
        replaces=replaces,
        queue=replica.queue,
        executing=stats.executing,
        in_flight=stats.in_flight,
        window=stats.window,
        done=stats.done,
        failed=stats.failed,
        held_bytes=stats.held_bytes,
        batch=round(((done or 0.0) + (failed or 0.0)) / calls, 1) if calls else None,
        trouble=trouble(*_recent([replica], rates, "done", "failed")),
        failure=_brief(last_failure([replica])),
        rate=_rounded(done, 2),
        service_s=_rounded(stats.service_s, 6),
        utilisation=None if busy is None else round(min(1.0, busy), 3),
    )


def _brief(failure: LastFailure | None) -> LastFailure | None:
    if failure is None:
        return None
    return replace(failure, error=failure.error.partition("\n")[0][:MAX_ERROR], traceback="")


def _gateway(gateway: GatewayStatus, rates: Rates) -> ShownGateway:
    stats = gateway.stats or GatewayCounts()
    return ShownGateway(
        **vars(_member(gateway)),
        open_requests=stats.open,
        waiting=stats.waiting,
        rate=_rounded(rates.rate(member_key(gateway), "answered"), 2),
        p50_s=round(stats.p50_s, 6),
        p95_s=round(stats.p95_s, 6),
        p99_s=round(stats.p99_s, 6),
    )


def _member(member: MemberStatus, replaces: str = "") -> ShownMember:
    size_bytes = member.pss_bytes or member.rss_bytes
    state = "awaited" if member.awaited else member.state
    is_ready = state == "ready"
    says = "ready, not open" if is_ready and not member.open else state
    return ShownMember(
        id=member.id,
        state=state,
        says=f"{says}, for {replaces}" if replaces else says,
        tone="good" if is_ready and member.open else TONES.get(state, "calm"),
        open=member.open,
        pid=member.pid,
        host=member.host or member.address,
        age_s=round(member.age_s),
        cpu=_rounded(member.cpu, 2),
        memory_mb=None if size_bytes is None else round(size_bytes / 1e6),
    )


def _number(member: str) -> int:
    parsed = parse_member(member)
    return 0 if parsed is None else parsed[1]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 6) if known else None
