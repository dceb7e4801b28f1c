"""What two processes tell each other over their link, beside heartbeats: about worlds that both are in. Pure.

A message is a frame of its kind, with the fields in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...errors import ProtocolError
from ...wire.connection.frames import Kind, pack_frame
from ...wire.endpoints.handshake import DialerHello
from ...wire.messages import decode, encode, message, sparse


@message("hello")
@sparse
@dataclass(frozen=True, kw_only=True)
class LinkHello(DialerHello):
    """Wants a link. ``peer``: who dials, as ``PeerInfo.to_json`` writes it; ``to``: the id that it expects here."""

    job: str
    peer: str
    heartbeat_s: float
    to: str = ""


@message("ready")
@dataclass(frozen=True, kw_only=True)
class MemberReady:
    """A member could use the world: it waits for the others. ``world`` is the id of one generation."""

    world: str
    rank: int


@message("revoke")
@dataclass(frozen=True, kw_only=True)
class WorldRevoked:
    """The world broke at rank ``by``, which lost ``rank``. ``cause`` is the name of the error."""

    world: str
    rank: int
    cause: str
    detail: str
    by: int


@message("left")
@dataclass(frozen=True, kw_only=True)
class MemberLeft:
    """The peer is no longer in the world, because ``rank`` left. ``collectives``: how many the peer has started."""

    world: str
    rank: int
    collectives: int


@message("goodbye")
@dataclass(frozen=True, kw_only=True)
class Goodbye:
    """The peer ends the link of its own accord."""


@message("sentinel")
@dataclass(frozen=True, kw_only=True)
class SentinelAt:
    """Where the peer's sentinel answers for it."""

    host: str
    port: int


WorldNews = MemberReady | WorldRevoked | MemberLeft
LinkMessage = WorldNews | Goodbye | SentinelAt
_NEWS: Final[dict[int, type[WorldNews]]] = {Kind.READY: MemberReady, Kind.REVOKE: WorldRevoked, Kind.LEFT: MemberLeft}
_FRAMES: Final[dict[type[LinkMessage], int]] = {
    Goodbye: Kind.GOODBYE,
    SentinelAt: Kind.SENTINEL,
    **{cls: kind for kind, cls in _NEWS.items()},
}


def pack_message(message: LinkMessage) -> bytes:
    """Return a message as a frame."""
    return pack_frame(_FRAMES[type(message)], encode(message))


def unpack_news(kind: int, body: bytes) -> WorldNews:
    """Raises ProtocolError for what no peer of ours would say: MessageError if the frame is of a known kind."""
    cls = _NEWS.get(kind)
    if cls is None:
        raise ProtocolError(f"frame kind {kind} on a link")
    return decode(cls, body)
