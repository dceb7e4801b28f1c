"""What people ask of a job, and the answers: of the coordinator, or of each agent (``WhoIsHere``, ``LogsOf``)."""

from __future__ import annotations

from dataclasses import dataclass

from ...wire.messages import MessageSet, message, sparse
from ..job.history import Event

PURPOSE = "control"
"""With which who asks comes to the listener of an agent."""


@message("here")
@dataclass(frozen=True, kw_only=True)
class WhoIsHere:
    """Answered by ``Here``."""


@message("status")
@dataclass(frozen=True, kw_only=True)
class StatusOf:
    """Answered by ``JobStatus``."""


@message("events")
@sparse
@dataclass(frozen=True, kw_only=True)
class EventsOf:
    """Those after number ``since``, or the ``last`` so many, or all. Answered by ``Events``, in parts if followed."""

    last: int | None = None
    since: int | None = None
    follow: bool = False


@message("logs")
@sparse
@dataclass(frozen=True, kw_only=True)
class LogsOf:
    """The ``last`` lines of each stream of the workers here, or of one. Answered by ``Lines``, in parts if followed."""

    last: int
    rank: int | None = None
    follow: bool = False

    def __post_init__(self) -> None:
        if self.last < 0 or (self.rank is not None and self.rank < 0):
            raise ValueError(f"last and rank count from 0, got {self.last} and {self.rank}")


@message("scale")
@dataclass(frozen=True, kw_only=True)
class Scale:
    """How many hosts are to have ranks. Answered by ``Done``."""

    nodes: int

    def __post_init__(self) -> None:
        if self.nodes < 0:
            raise ValueError(f"nodes cannot be {self.nodes}")


@message("drain")
@dataclass(frozen=True, kw_only=True)
class Drain:
    """``agent``: as people name it. Answered by ``Done``."""

    agent: str


@message("kill")
@sparse
@dataclass(frozen=True, kw_only=True)
class Kill:
    """A worker, or an agent as people name it. Answered by ``Done``."""

    rank: int | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) == (self.agent is None):
            raise ValueError("either a rank or an agent is to be killed")


Question = WhoIsHere | StatusOf | EventsOf | LogsOf | Scale | Drain | Kill
QUESTIONS: MessageSet[Question] = MessageSet("questions about a job", Question, tag="ask")


@dataclass(frozen=True, kw_only=True)
class Here:
    """``token``: only for a process of the same host and user."""

    job: str
    agent: str
    token: str | None = None


@dataclass(frozen=True, kw_only=True)
class Events:
    """``last``: the number of the last event that there is, where more follow."""

    events: tuple[Event, ...] = ()
    last: int = 0


@sparse
@dataclass(frozen=True, kw_only=True)
class Lines:
    """``left_out``: how many lines before these were too many to follow."""

    lines: tuple[str, ...] = ()
    left_out: int = 0


@sparse
@dataclass(frozen=True, kw_only=True)
class Done:
    """``text``: what was done, for people. ``agent``: the id of the one that it was done to."""

    text: str
    agent: str | None = None
