"""What the controller knows of one process of a deployment: who it is, how far it is, and what it said last. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ....wire.messages import Json
from ...graph import GATEWAY
from ...member.failure import Failure
from ...member.orders import MemberOrder
from ...member.reports import GatewayStatistics, ReplicaStatistics

CONTROLLER = "controller"
"""Stands for the controller where a donor of weights is named."""
YOUNG_S = 10.0  # whoever dies sooner after it became ready, without work to show, died young
PROVEN_ANSWERS = 10


class MemberState(enum.Enum):
    STARTING = "starting"  # its process was ordered, or it is expected back
    LOADING = "loading"
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    LEAVING = "leaving"
    GONE = "gone"


NEXT: dict[MemberState, frozenset[MemberState]] = {
    # Who says hello to a controller that was started again may be anywhere on its way.
    MemberState.STARTING: frozenset(MemberState) - {MemberState.STARTING},
    MemberState.LOADING: frozenset({MemberState.CONNECTING, MemberState.LEAVING, MemberState.GONE}),
    MemberState.CONNECTING: frozenset({MemberState.READY, MemberState.DRAINING, MemberState.LEAVING, MemberState.GONE}),
    # A gateway that died is started again by its host, under its old name.
    MemberState.READY: frozenset({MemberState.STARTING, MemberState.DRAINING, MemberState.LEAVING, MemberState.GONE}),
    MemberState.DRAINING: frozenset({MemberState.LEAVING, MemberState.GONE}),
    MemberState.LEAVING: frozenset({MemberState.GONE}),
    MemberState.GONE: frozenset(),
}
COMING = (MemberState.STARTING, MemberState.LOADING, MemberState.CONNECTING)
COUNTED = (*COMING, MemberState.READY)
SENDING = (MemberState.CONNECTING, MemberState.READY, MemberState.DRAINING)
TAKING = (MemberState.CONNECTING, MemberState.READY)
ENDING = (MemberState.DRAINING, MemberState.LEAVING)
WORKING = SENDING
"""Whoever loads may be silent for as long as that takes."""

LONG_S = 1.0
SILENCE_S = 3.0  # beyond its limit: a work that keeps its replica from saying anything

NOTHING = ReplicaStatistics()


def member_id(stage: str, number: int) -> str:
    """Return the name of a member; numbers are never used twice in a deployment."""
    return f"{stage}-{number}"


def parse_member(member: str) -> tuple[str, int] | None:
    """Return stage and number; None if that is no member's name."""
    stage, dash, number = member.rpartition("-")
    return (stage, int(number)) if dash and number.isdecimal() and number.isascii() else None


@dataclass(kw_only=True)
class Member:
    """One replica or gateway. Times are of the controller's monotonic clock."""

    id: str
    stage: str
    version: int
    born: float
    host: str = ""
    """Where its process runs; empty: it lives in a process that is not ours to start or kill."""
    keep: bool = False
    state: MemberState = MemberState.STARTING
    since: float = 0.0
    ready_at: float | None = None
    pid: int | None = None
    address: str = ""
    attached: bool = False
    """It said hello, and can be told something."""
    awaited: bool = False
    """It ran when the last controller ended, and has not been heard of since."""
    was_ready: bool = False
    """It was ready then."""
    load_waits: bool = False
    """It is told to load only once all of its stage have come back, of whom some may have what it needs."""
    donor: str | None = None
    tried: set[str] = field(default_factory=set)
    lacks_donor_since: float | None = None
    """Since when none is left of those that serve who might give it their weights."""
    retiring: str = ""
    """Why it is to go once it has been replaced; empty: it is not."""
    stats: ReplicaStatistics | GatewayStatistics | None = None
    """What it told last of its work; None: nothing yet."""
    metrics: tuple[Json, ...] | None = None
    """Of a gateway: its families of metrics as it told them last, as JSON."""
    failure: Failure | None = None
    """What failed in it last."""
    heard_at: float = 0.0
    """When it said something last."""
    worked_at: float = 0.0
    """When it said last that it has something to execute."""
    missed: list[MemberOrder] = field(default_factory=list)
    """What it has not been told yet of the end of others, as it was awaited."""
    told_ready: bool | None = None
    """Of a gateway: what it was told last of whether all is ready."""

    @property
    def is_gateway(self) -> bool:
        return self.stage == GATEWAY

    @property
    def counts(self) -> bool:
        """Whether it is one of the replicas that a stage is to have."""
        return self.state in COUNTED and not self.retiring

    @property
    def is_ready(self) -> bool:
        return self.state is MemberState.READY

    @property
    def work(self) -> ReplicaStatistics:
        """What it told of its work as a replica, if it is one and has told anything."""
        return self.stats if isinstance(self.stats, ReplicaStatistics) else NOTHING

    @property
    def has_loaded(self) -> bool:
        return self.state in TAKING

    @property
    def is_at_work(self) -> bool:
        """Whether it has something to execute, or is executing it."""
        return bool(self.work.executing or self.work.queue)

    @property
    def works_long(self) -> bool:
        """Whether it has executed something for a while, which its end would have executed anew."""
        return self.work.executing_s > LONG_S

    @property
    def may_send(self) -> bool:
        return self.attached and self.state in SENDING

    @property
    def may_take(self) -> bool:
        return self.attached and self.state in TAKING

    def go(self, state: MemberState, now: float) -> None:
        """Change the state; a step that is not in the table is a defect of ours."""
        if state not in NEXT[self.state]:
            raise AssertionError(f"{self.id} cannot go from {self.state.value} to {state.value}")
        self.state, self.since = state, now
        if state is MemberState.READY:
            self.ready_at = now

    def hangs(self, limit_s: float | None, now: float) -> bool:
        """Whether its work has not returned for longer than it may take."""
        if limit_s is None or not self.attached or self.stats is None or self.state not in WORKING:
            return False
        return self.work.executing_s > limit_s or now - self.heard_at > limit_s + SILENCE_S

    def drains_in_vain_s(self, now: float) -> float:
        """Return for how long it has drained without work to execute; ``hangs`` tells of work that takes too long."""
        return 0.0 if self.is_at_work else now - max(self.since, self.worked_at)

    def died_young(self, now: float) -> bool:
        """Whether its end is one of a crash loop's: it did not come to serve, or not for long, and did no work."""
        if self.ready_at is None:
            return self.state is not MemberState.LEAVING
        return now - self.ready_at < YOUNG_S and self.work.done < PROVEN_ANSWERS
