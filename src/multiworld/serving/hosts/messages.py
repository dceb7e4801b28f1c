"""What a controller and a host process say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...wire.messages import MessageSet, message
from .logs.recent_lines import LinesTold
from .order import Order


@message("start")
@dataclass(frozen=True, kw_only=True)
class Start:
    """Answered by ``Started``, or refused as HostExhaustedError where something ran out for now."""

    order: Order


@message("kill")
@dataclass(frozen=True, kw_only=True)
class Kill:
    """Kill the member and its process group."""

    member: str


@message("signal")
@dataclass(frozen=True, kw_only=True)
class Signal:
    """Send the signal to the member alone."""

    member: str
    signum: int


@message("lines")
@dataclass(frozen=True, kw_only=True)
class LinesOf:
    """What a member wrote after its first ``since`` lines, or its ``last`` lines. Answered by ``LinesFound``."""

    member: str
    since: int | None
    last: int


@message("stop")
@dataclass(frozen=True, kw_only=True)
class Stop:
    """Have all members end, and the host process."""

    grace_s: float


@message("refused")
@dataclass(frozen=True, kw_only=True)
class Refused:
    """The host is not let in. ``outdated``: what runs there belongs to a deployment that is no more."""

    reason: str
    outdated: bool = False


HostOrder = Start | Kill | Signal | LinesOf | Stop | Refused
HOST_ORDERS: MessageSet[HostOrder] = MessageSet("orders to a host", HostOrder, tag="do")


@dataclass(frozen=True, kw_only=True)
class Started:
    pid: int


@dataclass(frozen=True, kw_only=True)
class LinesFound:
    """None: the member is not known."""

    told: LinesTold | None


@message("hello")
@dataclass(frozen=True, kw_only=True)
class Hello:
    """A host process comes or comes back: how things are there."""

    host: str
    address: str
    pid: int
    capacity: int
    members: Mapping[str, int]
    jobs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    stopping: bool = False
    process_space: str = ""


@message("started")
@dataclass(frozen=True, kw_only=True)
class Restarted:
    """A member runs that nobody waits for: a kept one that was started again."""

    member: str
    pid: int


@message("exited")
@dataclass(frozen=True, kw_only=True)
class Exited:
    """See ``Ending``."""

    member: str
    pid: int
    returncode: int
    last_lines: tuple[str, ...]
    executing: tuple[str, ...] | None = None


@message("stopping")
@dataclass(frozen=True, kw_only=True)
class Stopping:
    """It begins to have its members end."""


HostEvent = Hello | Restarted | Exited | Stopping
HOST_EVENTS: MessageSet[HostEvent] = MessageSet("events of a host", HostEvent, tag="event")
