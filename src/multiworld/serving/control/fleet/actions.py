"""What the fleet's decisions order, and the records of what it decided. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...member.orders import MemberOrder


@dataclass(frozen=True, kw_only=True)
class FleetEvent:
    """Base of all records. ``at`` is Unix time in seconds; whoever carries the decisions out fills it in."""

    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReplicaStarted(FleetEvent):
    """A process was ordered. ``reason``: why one more is needed."""

    member: str
    stage: str
    host: str
    version: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReplicaReady(FleetEvent):
    """A member takes requests from now on. ``took_s``: since its process was ordered."""

    member: str
    stage: str
    version: int
    took_s: float


@dataclass(frozen=True, kw_only=True)
class ReplicaDraining(FleetEvent):
    """A replica is offered nothing new, and leaves when it holds nothing."""

    member: str
    stage: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReplicaLeft(FleetEvent):
    """A member ended as it was told to."""

    member: str
    stage: str


@dataclass(frozen=True, kw_only=True)
class ReplicaLost(FleetEvent):
    """A member is gone; it was fenced (killed), and what it held is sent elsewhere. ``why``: the evidence."""

    member: str
    stage: str
    why: str


@dataclass(frozen=True, kw_only=True)
class LoadFailed(FleetEvent):
    """A replica could not make its stage's work. ``source``: whose weights it was to take; empty for none."""

    member: str
    stage: str
    source: str
    error: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class CanaryPassed(FleetEvent):
    """A new replica with new weights answered a request as ``giver``, one with the old weights, did."""

    member: str
    stage: str
    version: int
    giver: str


@dataclass(frozen=True, kw_only=True)
class CanarySkipped(FleetEvent):
    """A new replica with new weights is to serve without its answer compared with an old one's. ``reason``: why."""

    member: str
    stage: str
    version: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class BackedOff(FleetEvent):
    """Replicas of a stage die young again and again: the next one is started ``delay_s`` later."""

    stage: str
    deaths: int
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class StageWaits(FleetEvent):
    """A replica is needed that cannot be started now."""

    stage: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EdgeOpened(FleetEvent):
    """The upstream end routes to the downstream end from this epoch on."""

    upstream: str
    downstream: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class EdgeClosed(FleetEvent):
    """The upstream end offers nothing new to the downstream end from this epoch on."""

    upstream: str
    downstream: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class EdgeBroken(FleetEvent):
    """An edge broke, or could not be formed, while both its ends live; it is formed again. ``attempts`` in a row."""

    upstream: str
    downstream: str
    attempts: int
    error: str


@dataclass(frozen=True, kw_only=True)
class EdgeLost(FleetEvent):
    """``member``, one end of an edge, tells that the world broke: whoever is to blame, unless the other end was let go.

    ``error``: the class. Of a member that dies each neighbor tells by itself, before or after ``ReplicaLost``.
    """

    upstream: str
    downstream: str
    member: str
    error: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ProcessEnded(FleetEvent):
    """The process of a member ended otherwise than it was told to; ``returncode`` is below 0 after a signal.

    Of one that was fenced it is the proof that it will not go on.
    """

    member: str
    stage: str
    returncode: int
    last_lines: str


@dataclass(frozen=True, kw_only=True)
class HostsMissing(FleetEvent):
    """Not all hosts that were to be waited for have come in time: replicas are placed on those that are there."""

    expected: int
    present: int
    waited_s: float


@dataclass(frozen=True, kw_only=True)
class Scaled(FleetEvent):
    """The number of replicas that a stage is to have was changed."""

    stage: str
    old: int
    new: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class UpdateStarted(FleetEvent):
    """New weights are being brought in beside the old ones."""

    stage: str
    version: int


@dataclass(frozen=True, kw_only=True)
class UpdateFinished(FleetEvent):
    """All replicas of the stage have the new weights."""

    stage: str
    version: int
    took_s: float


@dataclass(frozen=True, kw_only=True)
class UpdateRolledBack(FleetEvent):
    """New weights did not prove themselves; the stage stays with ``previous``."""

    stage: str
    version: int
    previous: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tuned(FleetEvent):
    """The batching of a stage was changed at run time."""

    stage: str
    settings: Mapping[str, int | float]


@dataclass(frozen=True, kw_only=True)
class PipelineReady(FleetEvent):
    """Every stage has a replica that takes requests. ``after_s``: how long that was not so."""

    after_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineUnready(FleetEvent):
    """A stage has no replica that takes requests. ``missing``: which, and why."""

    missing: str


@dataclass(frozen=True, kw_only=True)
class HostJoined(FleetEvent):
    host: str
    address: str


@dataclass(frozen=True, kw_only=True)
class HostLeft(FleetEvent):
    """A host was stopped, and has ended its members."""

    host: str


@dataclass(frozen=True, kw_only=True)
class HostLost(FleetEvent):
    """The link to a host's process is gone: nothing is started there. Its members are judged by their own worlds."""

    host: str


@dataclass(frozen=True, kw_only=True)
class StartProcess:
    """Start the process of a member. ``keep``: the host is to start it again by itself when it ends."""

    member: str
    stage: str
    host: str
    keep: bool = False


@dataclass(frozen=True, kw_only=True)
class KillProcess:
    """End a process at once, so that nothing that was given up goes on. ``restarts``: the host starts it again.

    ``pid``: that process and no later one of the same name; None: whichever runs.
    """

    member: str
    host: str
    pid: int | None = None
    restarts: bool = False


@dataclass(frozen=True, kw_only=True)
class Send:
    """Tell a member something, after what it was told before."""

    member: str
    message: MemberOrder


@dataclass(frozen=True, kw_only=True)
class Donate:
    """The controller itself hands the weights in this file over to a member that cannot read it."""

    member: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Emit:
    """Record what was decided."""

    event: FleetEvent


Action = StartProcess | KillProcess | Send | Donate | Emit
