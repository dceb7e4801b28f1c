"""What the controller orders its members to do: one message each. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ...wire.messages import MessageSet, message


class EdgeEnd(enum.Enum):
    """Which end of an edge a member is: requests go from upstream to downstream."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


@message("connect")
@dataclass(frozen=True, kw_only=True)
class Connect:
    """Form the edge with a peer of that stage. ``end``: of the member that is told so."""

    peer: str
    stage: str
    end: EdgeEnd = field(metadata={"json": "as"})


@message("open")
@dataclass(frozen=True, kw_only=True)
class OpenEdge:
    """Route to that peer from now on."""

    peer: str
    epoch: int = 0


@message("close")
@dataclass(frozen=True, kw_only=True)
class CloseEdge:
    """Offer nothing new to that peer."""

    peer: str
    epoch: int = 0


@message("lost")
@dataclass(frozen=True, kw_only=True)
class MemberLost:
    """That peer is gone."""

    peer: str


@message("died")
@dataclass(frozen=True, kw_only=True)
class MemberDied:
    """That peer died. ``executing``: the ids, in hexadecimal digits, of the requests that it was executing then."""

    peer: str
    executing: tuple[str, ...]


@message("load")
@dataclass(frozen=True, kw_only=True)
class Load:
    """Make the work of the stage.

    ``donor``: the member that hands its weights over; ``weights``: the file in which they lie; without both, those
    that the work begins with. ``canary``: the member that says what the work must answer.
    """

    version: int
    donor: str | None = None
    weights: str | None = None
    canary: str | None = None


@message("donate")
@dataclass(frozen=True, kw_only=True)
class GiveWeights:
    """Hand the weights over to that member."""

    to: str


@message("canary")
@dataclass(frozen=True, kw_only=True)
class GiveCanary:
    """Hand a request, and what it was answered, over to that member."""

    to: str


@message("drain")
@dataclass(frozen=True, kw_only=True)
class Drain:
    """Take nothing new in, and say when nothing is left."""


@message("leave")
@dataclass(frozen=True, kw_only=True)
class Leave:
    """End."""


@message("tune")
@dataclass(frozen=True, kw_only=True)
class Tune:
    """Form batches by these settings from now on."""

    batch_max_size: int
    batch_max_wait_s: float


@message("gateways")
@dataclass(frozen=True, kw_only=True)
class KeepFor:
    """Answers for other gateways than these need not be kept."""

    there: tuple[str, ...]


@message("where")
@dataclass(frozen=True, kw_only=True)
class TellWhere:
    """Say where these requests are, whose ids are in hexadecimal digits. ``asker``: the gateway that asks."""

    ids: tuple[str, ...]
    asker: str


@message("at")
@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """By the id of each request: the stage at which it is, and whether that is sure."""

    at: Mapping[str, tuple[str, bool]]


@message("readiness")
@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether all stages take requests, and why not."""

    ready: bool
    why: str = ""


MemberOrder: TypeAlias = (
    Connect
    | OpenEdge
    | CloseEdge
    | MemberLost
    | MemberDied
    | Load
    | GiveWeights
    | GiveCanary
    | Drain
    | Leave
    | Tune
    | KeepFor
    | TellWhere
    | Whereabouts
    | Readiness
)
ORDERS: MessageSet[MemberOrder] = MessageSet("orders to members", MemberOrder, tag="do")
