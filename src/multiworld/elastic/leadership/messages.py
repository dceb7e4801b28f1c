"""What the agents of one job say to each other, the coordinator included. Pure values, as they cross the network.

Agents of the release before leave out what has a default here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...wire.messages import Json, MessageSet, message, sparse
from ..job.actions import Master, Order, Outcome, Report, WorkerReport
from ..job.history import Event, Segment
from ..job.layout import AgentInfo
from ..job.roster import Roster, RosterChange
from ..job.trainings import KnownTraining
from ..rendezvous.base import Address


@message("attach")
@dataclass(frozen=True, kw_only=True)
class Attach:
    """An agent reports for duty, with what runs on its host. First of all on a link that it has opened."""

    agent: AgentInfo
    digest: Mapping[str, Json] = field(default_factory=dict)
    """What all agents of a job must agree on."""
    term: int = 0
    lost: str = ""
    """The coordinator that it followed last."""
    stale: bool = False
    """It was away, so that the others may have gone on without it."""
    doors: tuple[Address, ...] = ()
    """Where it listens."""
    segments: tuple[Segment, ...] = ()
    """The events that it has."""
    takes_roster_changes: bool = False
    """It can apply them; any other is told the whole roster each time."""
    workers: tuple[WorkerReport, ...] = ()
    master: Master | None = None
    """The c10d store that it serves."""
    ages_s: Mapping[str, float] = field(default_factory=dict)
    """How long ago each of its workers was started."""


@message("welcome")
@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The coordinator takes an agent. ``peer``: the coordinator, as ``PeerInfo.to_json`` writes it."""

    peer: str
    heartbeat_s: float
    roster: Roster
    revision: int = 0


@message("redirect")
@dataclass(frozen=True, kw_only=True)
class Redirect:
    """Another agent coordinates the job, and listens there."""

    host: str
    port: int


@message("refuse")
@dataclass(frozen=True, kw_only=True)
class Refuse:
    """This agent can never be one of the job's."""

    reason: str


@message("summon")
@dataclass(frozen=True, kw_only=True)
class Summon:
    """The job has a coordinator, ``id``, there. ``rank``: its term and its generation, against those of another."""

    host: str
    port: int
    id: str
    rank: tuple[int, int]


@message("end")
@dataclass(frozen=True, kw_only=True)
class Ended:
    """The job is over; if not ``of_job``, it is for this host only."""

    outcome: Outcome
    of_job: bool = True


@message("roster")
@dataclass(frozen=True, kw_only=True)
class RosterTold:
    """The whole roster."""

    roster: Roster
    revision: int = 0


@message("roster change")
@dataclass(frozen=True, kw_only=True)
class RosterChanged:
    """What is new in the roster."""

    change: RosterChange


@message("events")
@sparse
@dataclass(frozen=True, kw_only=True)
class EventsTold:
    """Something happened, or did long ago. ``answers``: the first number that was asked for."""

    events: tuple[Event, ...]
    segments: tuple[Segment, ...] | None = None
    """All that this agent has, for the other to ask for what it lacks."""
    answers: int | None = None


@message("events wanted")
@dataclass(frozen=True, kw_only=True)
class EventsWanted:
    """Those with these numbers, the two included."""

    first: int
    last: int


@message("trainings")
@dataclass(frozen=True, kw_only=True)
class TrainingsKnown:
    """What the coordinator knows of all trainings, for an agent that may succeed it."""

    trainings: tuple[KnownTraining, ...]


@message("asked")
@dataclass(frozen=True, kw_only=True)
class Asked:
    """Somebody asks about the job, and the agent that was asked passes it on."""

    number: int
    question: Mapping[str, Json]


@message("answered")
@sparse
@dataclass(frozen=True, kw_only=True)
class Answered:
    """One of these: a part of the answer, with more to come; the answer, or its end; why there is none."""

    number: int
    part: Mapping[str, Json] | None = None
    answer: Mapping[str, Json] | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if [self.part, self.answer, self.error].count(None) != 2:
            raise ValueError("either part, answer or error is needed")


AgentMessage = (
    Attach
    | Welcome
    | Redirect
    | Refuse
    | Summon
    | Ended
    | RosterTold
    | RosterChanged
    | EventsTold
    | EventsWanted
    | TrainingsKnown
    | Asked
    | Answered
    | Order
    | Report
)
AGENT_MESSAGES: MessageSet[AgentMessage] = MessageSet("messages between agents", AgentMessage, tag="say")
