"""What linked processes say has the JSON that it always had; what does not decode is refused with kind and field."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from multiworld.errors import MessageError, ProtocolError
from multiworld.wire.connection.frames import HEADER_BYTES, Header, Kind
from multiworld.world.links.link import Link
from multiworld.world.links.messages import (
    Goodbye,
    LinkMessage,
    MemberLeft,
    MemberReady,
    SentinelAt,
    WorldRevoked,
    pack_message,
    unpack_news,
)

SAID: list[tuple[LinkMessage, Kind, dict[str, Any]]] = [
    (MemberReady(world="w", rank=1), Kind.READY, {"world": "w", "rank": 1}),
    (
        WorldRevoked(world="w", rank=1, cause="PeerDiedError", detail="it died", by=0),
        Kind.REVOKE,
        {"world": "w", "rank": 1, "cause": "PeerDiedError", "detail": "it died", "by": 0},
    ),
    (
        MemberLeft(world="w", rank=1, collectives=3),
        Kind.LEFT,
        {"world": "w", "rank": 1, "collectives": 3},
    ),
    (Goodbye(), Kind.GOODBYE, {}),
    (SentinelAt(host="127.0.0.1", port=5), Kind.SENTINEL, {"host": "127.0.0.1", "port": 5}),
]
GARBAGE = [
    (Kind.READY, b'{"world":"w"}', "ready", "rank"),
    (Kind.READY, b'{"world":"w","rank":true}', "ready", "rank"),
    (Kind.REVOKE, b'{"world":5,"rank":0,"cause":"","detail":"","by":1}', "revoke", "world"),
    (Kind.LEFT, b'{"world":"w","rank":[0],"collectives":1}', "left", "rank"),
    (Kind.LEFT, b"[" * 5000, "left", ""),
    (Kind.SENTINEL, b'{"host":"127.0.0.1","port":"x"}', "sentinel", "port"),
    (Kind.GOODBYE, b"\xff", "goodbye", ""),
]


class Owner:
    """As that of a world: it reads what is said, and keeps it."""

    def __init__(self) -> None:
        self.news: list[object] = []

    def link_heard(self, link: Link) -> None: ...

    def link_said(self, link: Link, kind: int, body: bytes) -> None:
        self.news.append(unpack_news(kind, body))

    def link_lost(self, link: Link, reason: str, *, unreachable: bool) -> None: ...


def hear(link: Link, kind: int, body: bytes) -> None:
    link.end(Header(kind, 0, len(body), 0, 0, 0), body)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def link(owner: Owner) -> Link:
    return Link(owner, cast("Any", None), heartbeat_s=1.0)


@pytest.mark.parametrize(("message", "kind", "fields"), SAID)
def test_what_is_said_looks_as_in_the_release_before(message: LinkMessage, kind: Kind, fields: dict[str, Any]) -> None:
    frame = pack_message(message)
    assert (frame[2], json.loads(frame[HEADER_BYTES:])) == (kind, fields)


def test_what_is_said_is_heard(owner: Owner, link: Link) -> None:
    for message, kind, _ in SAID:
        hear(link, kind, pack_message(message)[HEADER_BYTES:])
    assert owner.news == [message for message, _, _ in SAID[:3]]
    assert link.said_goodbye
    assert link.sentinel == ("127.0.0.1", 5)


@pytest.mark.parametrize(("kind", "body", "name", "field"), GARBAGE)
def test_garbage_is_refused_with_its_kind_and_field_and_changes_nothing(
    owner: Owner, link: Link, kind: Kind, body: bytes, name: str, field: str
) -> None:
    with pytest.raises(MessageError) as refused:
        hear(link, kind, body)
    assert (refused.value.kind, refused.value.field) == (name, field)
    assert (owner.news, link.said_goodbye, link.sentinel) == ([], False, None)


def test_a_frame_of_another_protocol_is_none_of_a_link(link: Link) -> None:
    with pytest.raises(ProtocolError, match="frame kind 63 on a link"):
        hear(link, Kind.CREDIT, b"{}")


def test_a_later_release_may_say_more() -> None:
    assert unpack_news(Kind.READY, b'{"world":"w","rank":1,"more":[]}') == MemberReady(world="w", rank=1)
